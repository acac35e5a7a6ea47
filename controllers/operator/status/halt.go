// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import "errors"

// Halt ends a pass before its last phase. It is not an error: the status reports the reason.
type Halt struct {
	Reason, Message string
	// Degraded is set if a person has to act. Otherwise the operator only waits.
	Degraded bool
	// Retry is an error that no watch will report as resolved. The pass is requeued for it.
	Retry error
}

func (h *Halt) Error() string { return h.Message }

// Unwrap makes Retry visible to errors.Is.
func (h *Halt) Unwrap() error { return h.Retry }

// Retryable returns the errors of a pass that need a requeue. It drops a halt without retry, because a watch ends it. In
// joined errors, one per database, it treats each error separately.
func Retryable(err error) error {
	switch e := err.(type) { //nolint:errorlint // it takes the error apart
	case *Halt:
		return e.Retry
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, Retryable(one))
		}
		return errors.Join(all...)
	}
	if h := (*Halt)(nil); errors.As(err, &h) {
		return Retryable(errors.Unwrap(err))
	}
	return err
}

// divide returns the halts of a pass as one halt with all messages, and its other errors. A pass has several results if it runs the
// southbound database although the northbound one halted.
func divide(err error) (h *Halt, rest error) {
	switch e := err.(type) { //nolint:errorlint // it takes the error apart
	case *Halt:
		return e, nil
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			next, err := divide(one)
			rest = errors.Join(rest, err)
			switch {
			case next == nil:
			case h == nil:
				h = next
			default:
				h = &Halt{Reason: h.Reason, Message: h.Message + "; " + next.Message, Degraded: h.Degraded || next.Degraded}
			}
		}
		return h, rest
	}
	if errors.As(err, &h) { // the error of a phase
		return divide(errors.Unwrap(err))
	}
	return nil, err
}
