package solehold

import "time"

// margin is what is subtracted from a ttl (rule 4): 2 %, at least 100 ms, and the slack of the store's clock, but at
// most half of the ttl. A negative slack means that the server did not state it.
func margin(ttl, slack time.Duration) time.Duration {
	if slack < 0 {
		slack = slackUnknown
	}
	own := max(time.Duration(float64(ttl)*marginShare), marginMin)
	return min(own+slack, time.Duration(float64(ttl)*marginShareMax))
}

// trustUntil is the tick at which the work has stopped. It counts from before the request was sent: the store granted
// the time later than that.
func trustUntil(sent Tick, ttlLeft, ttl, slack time.Duration) Tick {
	return sent.Add(ttlLeft - margin(ttl, slack))
}
