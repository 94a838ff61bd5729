package solehold

import (
	"fmt"
	"time"
)

// Policy says what to do while renewals fail. A refusal always stops the work at once.
type Policy struct {
	immediate bool
	grace     time.Duration
}

var (
	// Deadline tries again until the local deadline, then stops. It is the default.
	Deadline = Policy{}
	// Immediate stops at the first renewal that fails.
	Immediate = Policy{immediate: true}
)

// Grace continues for this long after the deadline while no server answers. It needs a gate (rule 22).
func Grace(d time.Duration) Policy { return Policy{grace: d} }

const (
	// Heartbeats go out at a third of the ttl or a little earlier, so that those of a fleet spread.
	intervalShare  = 1.0 / 3
	intervalJitter = 0.2
	// After this share of the ttl, another heartbeat is sent beside one that is not answered.
	besideShare = intervalShare / 3
	besideMin   = 250 * time.Millisecond
	// Most heartbeats of a session that are under way at once.
	flightsMax      = 8
	retryShareFirst = 1.0 / 200
	retryShareMax   = 1.0 / 12
)

// action is what a session should do now: send a heartbeat, wait until a tick, or stop.
type action struct {
	send *heartbeat
	wait Tick
	stop *LostError
}

// heartbeat is a heartbeat to send now. Nothing waits for its answer.
type heartbeat struct {
	flight int
	// timeout is how long each server has.
	timeout time.Duration
	// beside is how many others are under way: as many servers have been asked already.
	beside int
}

// renewer decides when to renew a session, and when its holder must stop. It is pure: ticks and chance are arguments.
//
//	live --(a renewal is answered)--> live, with a later deadline
//	live --(the authority refuses)--> lost
//	live --(a renewal fails, Immediate)--> lost
//	live --(the deadline passes, and the grace if there is one)--> lost
//
// Lost is for good: an answer that comes after it changes nothing.
//
// A heartbeat without an answer is not abandoned: it may use all of the time that is left. After a while another one is
// sent beside it, to another server if there is one. An answer counts from when its own heartbeat was sent, so a server
// that is slow costs no session (rule 4).
//
// Only the answer to a heartbeat moves trust, because it alone comes with the full set of leases. The renewal of a
// single lease says nothing about the others, one of which may have been revoked, so the renewer never learns of it.
type renewer struct {
	policy   Policy
	ttl      time.Duration
	interval time.Duration
	chance   chance
	retries  *backoff
	beside   time.Duration
	// flights are the ticks at which the heartbeats under way were sent, by their numbers.
	flights map[int]Tick
	sent    int
	next    Tick
	hasNews bool
	failure string
	// deadline is the tick at which trust in the last answer ends.
	deadline Tick
	lost     *LostError
}

// newRenewer begins with the answer to the opening of a session. Interval 0 is a third of the ttl.
func newRenewer(policy Policy, interval time.Duration, sent Tick, opened *sessionView, chance chance) *renewer {
	ttl := opened.fullTTL
	if interval <= 0 {
		interval = share(ttl, intervalShare)
	}
	retries := BackoffConfig{First: share(ttl, retryShareFirst), Cap: share(ttl, retryShareMax)}
	r := &renewer{
		policy:   policy,
		ttl:      ttl,
		interval: interval,
		chance:   chance,
		retries:  newBackoff(retries, chance),
		beside:   max(share(ttl, besideShare), besideMin),
		flights:  map[int]Tick{},
		failure:  "no renewal was answered",
		deadline: trustUntil(sent, opened.ttlLeft, ttl, opened.slack),
	}
	r.next = r.after(sent)
	return r
}

// endsAt is the tick at which the work stops if no renewal comes through.
func (r *renewer) endsAt() Tick { return r.deadline.Add(r.policy.grace) }

// poll says what to do at this tick.
func (r *renewer) poll(now Tick) action {
	if lost := r.judge(now); lost != nil {
		return action{stop: lost}
	}
	if due := r.due(); now < due {
		return action{wait: min(due, r.endsAt())}
	}
	beside := len(r.flights)
	r.sent++
	r.flights[r.sent] = now
	return action{send: &heartbeat{flight: r.sent, timeout: r.timeout(now, beside), beside: beside}}
}

// due is when the next heartbeat is sent: at its time, or beside those that are not answered.
func (r *renewer) due() Tick {
	if len(r.flights) == 0 {
		return r.next
	}
	most := flightsMax
	if r.policy.immediate {
		most = 1 // where one failure is the end, nothing is sent beside a heartbeat
	}
	if len(r.flights) >= most {
		return never
	}
	var last Tick
	for _, began := range r.flights {
		last = max(last, began)
	}
	return last.Add(r.beside)
}

func (r *renewer) timeout(now Tick, beside int) time.Duration {
	left := r.endsAt().Sub(now)
	switch {
	case r.policy.immediate:
		return min(left, share(r.ttl, intervalShare))
	case beside == 0:
		return left
	}
	return min(left, r.beside*(flightsMax-1))
}

// answered takes in the answer to a heartbeat. A deadline never moves earlier, and heartbeats that were sent before
// this one have nothing more to say.
func (r *renewer) answered(now, sent Tick, ttlLeft, slack time.Duration) {
	for flight, began := range r.flights {
		if began <= sent {
			delete(r.flights, flight)
		}
	}
	if r.judge(now) != nil {
		return
	}
	r.deadline = max(r.deadline, trustUntil(sent, ttlLeft, r.ttl, slack))
	if r.hasNews {
		r.next = now
	} else {
		r.next = max(r.next, r.after(sent))
	}
	r.hasNews = false
	r.retries.reset()
}

// news says that something has happened to the session: the next heartbeat is sent now. If one is on its way, which may
// have been answered before it happened, another one follows it.
func (r *renewer) news(now Tick) {
	r.hasNews = len(r.flights) > 0
	r.next = min(r.next, now)
}

// failed takes in that a heartbeat had no answer that decides anything; false if one that was sent later was answered.
func (r *renewer) failed(flight int, now Tick, detail string, retryAfter time.Duration) bool {
	if _, isUnderWay := r.flights[flight]; !isUnderWay {
		return false
	}
	delete(r.flights, flight)
	r.failure = detail
	if r.policy.immediate && r.judge(now) == nil {
		r.lose(WhyFailed, fmt.Sprintf("a renewal failed, and the policy is to stop at once: %s", detail), "")
	}
	r.next = now.Add(r.retries.delay(min(retryAfter, share(r.ttl, retryShareMax))))
	return true
}

// refused takes in that the session is over by the authority's word.
func (r *renewer) refused(err error) {
	r.lose(WhyRefused, fmt.Sprintf("the authority refused to renew: %v", err), codeOf(err))
}

// setBack takes in an answer from an older history: nothing of it is used.
func (r *renewer) setBack(err error) { r.lose(WhyHistory, err.Error(), "") }

// closed takes in that the holder closed the session.
func (r *renewer) closed() { r.lose(WhyClosed, "the session was closed", "") }

func (r *renewer) judge(now Tick) *LostError {
	if r.lost == nil && now >= r.endsAt() {
		r.lose(WhyDeadline, fmt.Sprintf("the deadline passed without a renewal: %s", r.failure), "")
	}
	return r.lost
}

func (r *renewer) lose(why Why, detail, code string) {
	if r.lost == nil {
		r.lost = &LostError{Why: why, Detail: detail, Code: code}
	}
}

func (r *renewer) after(sent Tick) Tick {
	return sent.Add(share(r.interval, 1-intervalJitter*r.chance()))
}

func share(of time.Duration, share float64) time.Duration { return time.Duration(float64(of) * share) }
