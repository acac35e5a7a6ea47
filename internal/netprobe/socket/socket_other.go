// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

// Package socket sets options of UDP sockets that only Linux has. `kubectl ko` links the packages that use it, and runs on other systems.
package socket

import (
	"errors"
	"net"
)

// ForbidFragments returns an error: other systems than Linux run no probes.
func ForbidFragments(*net.UDPConn) (payload int, err error) { return 0, errors.ErrUnsupported }

// TooLarge returns false.
func TooLarge(error) bool { return false }

// SendSegments returns an error.
func SendSegments(*net.UDPConn, int) error { return errors.ErrUnsupported }

// ReceiveSegments returns an error.
func ReceiveSegments(*net.UDPConn) error { return errors.ErrUnsupported }

// Buffer does nothing.
func Buffer(*net.UDPConn, int) error { return nil }
