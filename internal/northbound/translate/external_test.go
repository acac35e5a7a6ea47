// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// externalPortInputs are ExternalPort with a MAC address as text.
type externalPortInputs struct {
	ExternalPort
	MAC hardwareAddr
}

func TestExternal(t *testing.T) {
	rowsOf(t, "external-", func(in struct {
		ExternalInputs
		Ports []externalPortInputs
	}) []desired.Row {
		for _, port := range in.Ports {
			port.ExternalPort.MAC = port.MAC.HardwareAddr
			in.ExternalInputs.Ports = append(in.ExternalInputs.Ports, port.ExternalPort)
		}
		return External(in.ExternalInputs)
	})
}

func TestOvnNAT(t *testing.T) {
	rowsOf(t, "ovnnat-", func(in struct {
		OvnNATInputs
		MAC hardwareAddr
	}) []desired.Row {
		in.OvnNATInputs.MAC = in.MAC.HardwareAddr
		rows := OvnNAT(in.OvnNATInputs)
		expectTranslated(t, in.OvnNATInputs, rows)
		return rows
	})
}

// expectTranslated expects that the rows have the translations, the OvnEip and the nodes of their inputs.
func expectTranslated(t *testing.T, in OvnNATInputs, rows []desired.Row) {
	t.Helper()
	var want, got []Translation
	for _, pair := range in.Pairs {
		one := Translation{Vpc: in.Vpc, Address: pair.External, Internal: pair.Internal, Source: in.Kind == KindOvnSnatRule}
		if in.Kind == KindOvnDnatRule {
			one.Protocol, one.Port = strings.ToLower(string(in.Protocol)), in.ExternalPort
		}
		want = append(want, one)
	}
	for _, row := range rows {
		read := TranslatedBy(row.Model)
		got = append(got, read.Translations...)
		if len(read.Translations) > 0 && (read.Eip != in.Eip || !slices.Equal(read.Nodes, in.Nodes)) {
			t.Errorf("%s %s: row %s has OvnEip %q and nodes %q", in.Kind, in.Name, row.Key, read.Eip, read.Nodes)
		}
	}
	order := func(a, b Translation) int { return a.Address.Compare(b.Address) }
	slices.SortFunc(want, order)
	slices.SortFunc(got, order)
	if !slices.Equal(got, want) {
		t.Errorf("%s %s: the rows translate %v, want %v", in.Kind, in.Name, got, want)
	}
}
