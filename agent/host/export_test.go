// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

// Functions for the tests in package host_test.
var (
	SetClaims     = setClaims
	SetForwarded  = setForwarded
	SetMasquerade = setMasquerade
	Sysctl        = sysctl
	Value         = value
)
