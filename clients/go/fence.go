package solehold

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Verdict is what a gate says about work that carries a token.
type Verdict struct {
	// Word is admit, stale or undecidable.
	Word string
	// Why it is undecidable: unknown, forgotten, newer, expired, unconfirmed, unsaved, denied (the server refuses the
	// gate's key), hidden (the key may not see the resource), no_such_resource or never_given.
	Why string
	// Newest is the newest token that is known, where that is the reason.
	Newest    uint64
	hasNewest bool
}

// IsAdmitted reports whether the work may take effect.
func (v Verdict) IsAdmitted() bool { return v.Word == "admit" }

// MayPass reports whether waiting may settle it. If not, the work is better refused.
func (v Verdict) MayPass() bool {
	return v.Word == "undecidable" && v.Why != "no_such_resource" && v.Why != "never_given"
}

func (v Verdict) needsRead() bool { return v.MayPass() && v.Why != "unsaved" && v.Why != "denied" }

// String shows all of it, as in "stale 7".
func (v Verdict) String() string {
	words := []string{v.Word}
	if v.Why != "" {
		words = append(words, v.Why)
	}
	if v.hasNewest {
		words = append(words, fmt.Sprint(v.Newest))
	}
	return strings.Join(words, " ")
}

var admit = Verdict{Word: "admit"}

func stale(newest uint64) Verdict { return Verdict{Word: "stale", Newest: newest, hasNewest: true} }

func undecidable(why string) Verdict { return Verdict{Word: "undecidable", Why: why} }

func undecidableBeside(why string, newest uint64) Verdict {
	return Verdict{Word: "undecidable", Why: why, Newest: newest, hasNewest: true}
}

// resourceKey is the kind and the key of a resource, and one of its slots, from 1 on; 0 for an exclusive lease. Tokens
// of different slots do not fence each other, but those of a slot and of an exclusive lease do (rule 29).
type resourceKey struct {
	kind, key string
	slot      int
}

func (k resourceKey) isSlot() bool { return k.slot > 0 }

// whole is the resource that a slot is of.
func (k resourceKey) whole() resourceKey { return resourceKey{kind: k.kind, key: k.key} }

// mark is the newest token that is known, and the session that it was granted to; empty if that is not known.
type mark struct {
	token   uint64
	session string
}

// raisedBy is the mark after another was seen; false if it stays as it is.
func (m mark) raisedBy(by mark) (mark, bool) {
	binds := by.token == m.token && m.session == "" && by.session != ""
	if by.token > m.token || binds {
		return by, true
	}
	return m, false
}

// fenceRules are how a gate judges.
type fenceRules struct {
	cacheTTL  time.Duration
	failOpen  bool
	strict    bool
	remembers bool
	marksMax  int
}

// record is what a gate that remembers has to save: a mark, a floor or an epoch.
type record struct {
	key   *resourceKey
	mark  mark
	floor *uint64
	epoch *uint64
}

// readAt is when a mark was read from the store, and from which history.
type readAt struct {
	asked Tick
	epoch uint64
}

type fenceEntry struct {
	mark   mark
	record int
	// snapshot is the number of the snapshot that showed it, 0 if none did.
	snapshot  int
	read      *readAt
	confirmed bool
	// history is the epoch of the last history that is known to have given this token.
	history uint64
	// exclusive is, of a resource, the highest token that is known to be of an exclusive lease, which fences its slots.
	exclusive uint64
}

type headAt struct {
	asked    Tick
	revision uint64
}

// proofsMax bounds the questions for the head of the store that the watch has not caught up with.
const proofsMax = 16

// fence is the gate's judgement (rule 21): whether work that carries a token may still take effect. It is pure: the
// clock and the store's answers are arguments.
//
// What is not known admits nothing. Marks are never lowered and never dropped by age: when there are too many, those
// with the lowest tokens are dropped, and the floor is raised to the highest of them. Knowledge is as old as the
// question that it answers.
//
// Each slot of a resource that is shared has a mark of its own, and the mark of the resource is as high as the highest
// of them: every token fences the exclusive ones before it. A slot is fenced by the tokens of exclusive leases, which
// are a part of what is known of the resource.
type fence struct {
	rules fenceRules
	// floor: of a resource without a mark, tokens up to here need a read of the store.
	floor uint64
	// epoch is that of the history that is followed (rule 23).
	epoch uint64
	// proven: everything that was decided before this tick is known. Nil before the first snapshot.
	proven *Tick
	// told: the watch has shown everything up to this revision; nil while a snapshot is under way.
	told *uint64
	// formerFloor is as high as the marks of former histories that were dropped: the present history cannot tell what
	// they were.
	formerFloor uint64
	// formerExclusive is the highest token of former histories that was of an exclusive lease, or was restored and may
	// have been. The present history may have lost that lease, so that its slots say nothing of it: those below are not
	// admitted.
	formerExclusive uint64
	// restored is the highest token that was restored. Whether it was of an exclusive lease is not saved.
	restored uint64
	marks    map[resourceKey]fenceEntry
	snapshot int
	// whole is the number of the last whole snapshot, 0 if there is none.
	whole     int
	heads     []headAt
	awayUntil Tick
	// isDenied: the store refused the gate, and has told it nothing since.
	isDenied   bool
	records    int
	saved      int
	unsavedAll []record
}

func newFence(rules fenceRules) *fence {
	f := &fence{rules: rules, marks: map[resourceKey]fenceEntry{}, awayUntil: math.MinInt64}
	if !rules.remembers {
		f.saved = math.MaxInt
	}
	return f
}

// isReady reports whether a snapshot is whole, and everything is saved.
func (f *fence) isReady() bool { return f.whole != 0 && f.records <= f.saved }

// judge gives the verdict. It raises the mark where that is part of it: a session is bound to its token when it is
// first shown, an exclusive lease fences slots when its token is, and a gate that fails open takes a newer token for
// granted while the store is away.
func (f *fence) judge(key resourceKey, token uint64, session string, now Tick) Verdict {
	entry, isKnown := f.marks[key]
	if newest, isNewer := f.newer(key, entry.mark, token, session); isNewer {
		return stale(newest)
	}
	if doubt, isDoubtful := f.doubt(entry, isKnown, token, now); isDoubtful {
		yields := slices.Contains([]string{"unknown", "newer", "expired", "unconfirmed"}, doubt.Why)
		if !(f.failsOpen(key, token, now) && yields) {
			if f.isDenied && doubt.needsRead() {
				return undecidable("denied")
			}
			return doubt
		}
	}
	binds := entry.mark.session == "" && session != ""
	fencesSlots := key.isSlot() || entry.exclusive >= token
	if !isKnown || entry.mark.token != token || binds || !fencesSlots {
		f.raise(key, mark{token, session})
		f.raiseExclusive(key, token)
		entry = f.marks[key]
	}
	if entry.record > f.saved {
		return undecidable("unsaved")
	}
	return admit
}

// newer is the newest token that fences this one; false if none is known.
func (f *fence) newer(key resourceKey, known mark, token uint64, session string) (uint64, bool) {
	newest, isNewer := uint64(0), false
	isOther := token == known.token && known.session != "" && session != "" && known.session != session
	if token < known.token || isOther {
		newest, isNewer = known.token, true
	}
	if key.isSlot() {
		if exclusive := max(f.marks[key.whole()].exclusive, f.formerExclusive); token < exclusive {
			newest, isNewer = max(newest, exclusive), true
		}
	}
	return newest, isNewer
}

// failsOpen tells whether a token is admitted without the store. That of a slot must be known to this gate, or as new
// as the newest of the resource: an exclusive lease may have come between.
func (f *fence) failsOpen(key resourceKey, token uint64, now Tick) bool {
	entry, isThere := f.marks[key]
	isKnown := isThere && entry.mark.token == token && f.knownSince(entry) != nil
	isNewest := token >= f.marks[key.whole()].mark.token
	return f.rules.failOpen && f.isAway(now) && (!key.isSlot() || isKnown || isNewest)
}

func (f *fence) doubt(entry fenceEntry, isKnown bool, token uint64, now Tick) (Verdict, bool) {
	switch {
	case token == 0:
		return undecidableBeside("never_given", entry.mark.token), true
	case !isKnown && token <= f.floor:
		return undecidable("forgotten"), true
	case !isKnown:
		return undecidable("unknown"), true
	case token > entry.mark.token:
		return undecidableBeside("newer", entry.mark.token), true
	}
	since := f.knownSince(entry)
	switch {
	case since == nil:
		return undecidable("unknown"), true
	case now.Sub(*since) > f.rules.cacheTTL:
		return undecidable("expired"), true
	case f.rules.strict && !entry.confirmed:
		return undecidable("unconfirmed"), true
	}
	return Verdict{}, false
}

// knownSince is the latest tick at which the mark is known to have been the newest.
func (f *fence) knownSince(entry fenceEntry) *Tick {
	var since *Tick
	if entry.read != nil && entry.read.epoch == f.epoch {
		since = &entry.read.asked
	}
	isTold := f.whole != 0 && entry.snapshot >= f.whole
	if isTold && f.proven != nil && (since == nil || *f.proven > *since) {
		since = f.proven
	}
	return since
}

// answerOf is what the store said about a resource when it was asked.
type answerOf struct {
	asked Tick
	// mark is nil if there is no such resource.
	mark  *mark
	epoch *uint64
	// hidden: the gate's key may not see it.
	hidden bool
}

// conclude gives the verdict after the store was asked for this very work, when the work was here already: what the
// store does not know then, it never gave. False if the answer is from an older history, which is not followed.
func (f *fence) conclude(key resourceKey, token uint64, session string, told answerOf, now Tick) (Verdict, bool) {
	epoch := f.epoch
	if told.epoch != nil {
		epoch = *told.epoch
	}
	if !f.follow(epoch) {
		return Verdict{}, false
	}
	f.awayUntil = math.MinInt64
	// "No such resource" is also the answer about a tenant that the gate's key is not for.
	f.isDenied = f.isDenied && told.mark == nil && !told.hidden
	if told.mark != nil {
		f.raise(key, *told.mark)
		if entry := f.marks[key]; entry.mark.token == told.mark.token {
			if entry.read == nil || entry.read.epoch < f.epoch || entry.read.asked < told.asked {
				entry.read = &readAt{told.asked, f.epoch}
			}
			entry.confirmed, entry.history = true, f.epoch
			f.marks[key] = entry
		}
		f.slotIsPresent(key, told.mark.token)
	}
	verdict := f.judge(key, token, session, now)
	switch {
	case told.hidden && verdict.Word == "undecidable":
		return undecidable("hidden"), true
	case verdict.Why == "newer":
		return undecidableBeside("never_given", verdict.Newest), true
	case told.mark == nil && slices.Contains([]string{"unknown", "forgotten", "expired", "unconfirmed"}, verdict.Why):
		return undecidable("no_such_resource"), true
	}
	return verdict, true
}

// granted takes in a lease on a resource, or on one of its slots, that the watch shows with an event.
func (f *fence) granted(key resourceKey, told mark) {
	f.learn(key, told)
	f.raiseExclusive(key, told.token)
}

// raiseExclusive: a token is of an exclusive lease, unless it is a slot's.
func (f *fence) raiseExclusive(key resourceKey, token uint64) {
	if entry := f.marks[key]; !key.isSlot() && entry.exclusive < token {
		entry.exclusive = token
		f.marks[key] = entry
	}
}

// learn takes in the newest token of a resource, which may be one of its slots', or of a slot, from a snapshot.
func (f *fence) learn(key resourceKey, told mark) {
	f.raise(key, told)
	// A store that has less than was admitted is not believed: the mark stays, and admits nothing by the watch.
	if entry := f.marks[key]; entry.mark.token == told.token {
		entry.snapshot, entry.history = f.snapshot, f.epoch
		f.marks[key] = entry
	}
	f.slotIsPresent(key, told.token)
}

// slotIsPresent: the present history has given the token of a slot, which may be the newest of its resource.
func (f *fence) slotIsPresent(key resourceKey, token uint64) {
	if whole, isKnown := f.marks[key.whole()]; key.isSlot() && isKnown && whole.mark.token == token {
		whole.history = f.epoch
		f.marks[key.whole()] = whole
	}
}

// deleted takes in that a resource was deleted: its mark stays, and admits nothing until there is news of it.
func (f *fence) deleted(key resourceKey) {
	if entry, isKnown := f.marks[key]; isKnown {
		entry.snapshot, entry.read = 0, nil
		f.marks[key] = entry
	}
}

// follow takes over the epoch of an answer; false if it is from an older history (rule 23).
func (f *fence) follow(epoch uint64) bool {
	if epoch > f.epoch {
		f.epoch = epoch
		f.formerFloor = f.floor
		f.formerExclusive = max(f.formerExclusive, f.restored)
		for _, entry := range f.marks {
			f.formerExclusive = max(f.formerExclusive, entry.exclusive)
		}
		f.whole, f.told, f.proven, f.heads = 0, nil, nil, nil
		f.snapshot++
		f.note(record{epoch: &epoch})
	}
	return epoch == f.epoch
}

// snapshotBegins begins a snapshot; false if it is from an older history.
func (f *fence) snapshotBegins(epoch uint64) bool {
	if !f.follow(epoch) {
		return false
	}
	f.snapshot++
	f.told = nil
	f.isDenied = false
	return true
}

// snapshotEnds: the snapshot, asked for at a tick, is whole up to a revision. Resources that were not in it are
// unknown.
func (f *fence) snapshotEnds(upTo uint64, asked Tick) {
	f.whole = f.snapshot
	f.prove(asked)
	f.toldUpTo(upTo)
}

// toldUpTo: the watch has shown everything up to a revision of the present epoch.
func (f *fence) toldUpTo(revision uint64) {
	if f.told == nil || revision > *f.told {
		f.told = &revision
	}
	f.isDenied = false
	f.proveHeads()
}

func (f *fence) prove(asked Tick) {
	if f.proven == nil || asked > *f.proven {
		f.proven = &asked
	}
}

// proveHeads: what was decided before a question is known when the watch has shown everything up to the answer.
func (f *fence) proveHeads() {
	for len(f.heads) > 0 && f.told != nil && f.heads[0].revision <= *f.told {
		f.prove(f.heads[0].asked)
		f.heads = f.heads[1:]
	}
}

// headWas: the store was asked how far it is. False if the answer is from an older history.
func (f *fence) headWas(epoch, head uint64, asked Tick) bool {
	if !f.follow(epoch) {
		return false
	}
	// It does not show whether the store tells the gate anything else: how far it is, it tells everyone.
	f.awayUntil = math.MinInt64
	if len(f.heads) == proofsMax {
		f.heads = f.heads[1:]
	}
	f.heads = append(f.heads, headAt{asked, head})
	f.proveHeads()
	return true
}

// storeIsAway: the store could not be reached, and need not be asked again before that tick.
func (f *fence) storeIsAway(until Tick) { f.awayUntil = until }

// storeDenies: the store answered, and refuses the gate. It is not away, and the gate admits nothing without it, even
// if it fails open.
func (f *fence) storeDenies() { f.isDenied = true }

func (f *fence) isAway(now Tick) bool { return !f.isDenied && now < f.awayUntil }

// restore takes over what was saved before a restart, in the same order.
func (f *fence) restore(saved record) {
	switch {
	case saved.epoch != nil:
		f.follow(*saved.epoch)
		f.formerFloor = f.floor // the same epoch again: marks of former histories were dropped
	case saved.floor != nil:
		f.floor = max(f.floor, *saved.floor)
	case saved.key != nil:
		f.restored = max(f.restored, saved.mark.token)
		old, isKnown := f.marks[*saved.key]
		_, raises := old.mark.raisedBy(saved.mark)
		if !isKnown || raises {
			f.marks[*saved.key] = fenceEntry{mark: saved.mark, history: f.epoch}
		}
	}
}

// unsaved is what has to be saved, and the number to give to savedUpTo when it is.
func (f *fence) unsaved() ([]record, int) {
	records := f.unsavedAll
	f.unsavedAll = nil
	return records, f.records
}

func (f *fence) savedUpTo(number int) { f.saved = max(f.saved, number) }

// everything is what a gate that restarts must know, in order.
func (f *fence) everything() []record {
	formerFloor, epoch, floor := f.formerFloor, f.epoch, f.floor
	former := []record{{floor: &formerFloor}}
	present := []record{{epoch: &epoch}, {floor: &floor}}
	for key, entry := range f.marks {
		saved := record{key: &key, mark: entry.mark}
		if f.isFormer(entry) {
			former = append(former, saved)
		} else {
			present = append(present, saved)
		}
	}
	return append(former, present...)
}

// raise raises a mark, with a slot's that of its resource; it never lowers one.
func (f *fence) raise(key resourceKey, to mark) {
	if key.isSlot() {
		f.raiseOne(key.whole(), mark{token: to.token})
	}
	f.raiseOne(key, to)
}

func (f *fence) raiseOne(key resourceKey, to mark) {
	old, isKnown := f.marks[key]
	raised := to
	if isKnown {
		var raises bool
		if raised, raises = old.mark.raisedBy(to); !raises {
			return
		}
	} else {
		// What a former history had, and was dropped, may have been above what this one has.
		if to.token < f.formerFloor {
			raised = mark{token: f.formerFloor}
		}
		if len(f.marks) >= f.rules.marksMax {
			f.compact()
		}
	}
	number := f.note(record{key: &key, mark: raised})
	if isKnown && old.mark.token == raised.token {
		old.mark, old.record = raised, number
		f.marks[key] = old
	} else {
		// What was known of the former token says nothing of this one.
		f.marks[key] = fenceEntry{mark: raised, record: number, exclusive: old.exclusive}
	}
}

func (f *fence) note(made record) int {
	if !f.rules.remembers {
		return 0
	}
	f.unsavedAll = append(f.unsavedAll, made)
	f.records++
	return f.records
}

// compact drops the marks with the lowest tokens, an eighth of them.
func (f *fence) compact() {
	tokens := make([]uint64, 0, len(f.marks))
	for _, entry := range f.marks {
		tokens = append(tokens, entry.mark.token)
	}
	if len(tokens) == 0 {
		return
	}
	slices.Sort(tokens)
	f.floor = max(f.floor, tokens[len(tokens)/8])
	former := uint64(0)
	for key, entry := range f.marks {
		if entry.mark.token <= f.floor {
			if f.isFormer(entry) {
				former = max(former, entry.mark.token)
			}
			delete(f.marks, key)
		}
	}
	floor := f.floor
	f.note(record{floor: &floor})
	if former > f.formerFloor {
		f.formerFloor = former
		epoch := f.epoch
		f.note(record{epoch: &epoch})
	}
}

// isFormer reports whether the present history is not known to have given this token.
func (f *fence) isFormer(entry fenceEntry) bool { return entry.history < f.epoch }
