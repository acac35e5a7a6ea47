// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovsdb is the root of the OVSDB packages: schemas, the models generated from them, and clients.
//
// The models have generated clone and equality functions ("extended"); without them every copy of a row takes a round trip
// through JSON.
package ovsdb

//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p nb -o nb schema/ovn-nb.ovsschema
//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p vswitch -o vswitch schema/vswitch.ovsschema
