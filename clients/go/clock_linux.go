package solehold

import (
	"syscall"
	"unsafe"
)

const clockBoottime = 7

func bootTime() Tick {
	var now syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	if failed != 0 {
		// Linux has had this clock since 2.6.39. Without a clock no lease can be trusted.
		panic("solehold: cannot read CLOCK_BOOTTIME: " + failed.Error())
	}
	return Tick(now.Nano())
}
