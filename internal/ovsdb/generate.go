// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovsdb roots the packages of OVSDB: schemas, the models generated from them, and clients.
//
// The models have generated clone and equality ("extended"): without them reading a row is a round trip through JSON.
package ovsdb

//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p nb -o nb schema/ovn-nb.ovsschema
//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p sb -o sb schema/ovn-sb.ovsschema
//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p vswitch -o vswitch schema/vswitch.ovsschema
