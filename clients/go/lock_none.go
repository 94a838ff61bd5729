//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package solehold

import (
	"errors"
	"os"
)

func lockFile(*os.File) error { return errors.New("files cannot be locked on this system") }
