//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package solehold

import (
	"os"
	"syscall"
)

// lockFile locks a file for this process, until it is closed.
func lockFile(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
