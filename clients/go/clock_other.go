//go:build !linux

package solehold

import "time"

var started = time.Now()

func bootTime() Tick { return Tick(time.Since(started)) }
