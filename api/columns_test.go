// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// columns returns the columns of `kubectl get` by kind; columns with a priority above 0 appear with -o wide only.
func columns(t *testing.T) map[string][]apiextensionsv1.CustomResourceColumnDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "config", "crd", "bases", "kubeovn.io_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions: %v", len(files), err)
	}
	byKind := map[string][]apiextensionsv1.CustomResourceColumnDefinition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		for _, version := range crd.Spec.Versions {
			if version.Name == "v1" {
				byKind[crd.Spec.Names.Kind] = version.AdditionalPrinterColumns
			}
		}
	}
	return byKind
}

// TestColumnsOfReady: READY and MESSAGE are the condition Ready. A field with omitempty would be empty instead of False.
func TestColumnsOfReady(t *testing.T) {
	const ready = `.status.conditions[?(@.type=="Ready")].`
	for kind, list := range columns(t) {
		if kind == "ProviderNetwork" { // has a condition Ready of each node, too; its field ready is always written
			continue
		}
		path := map[string]string{}
		for _, c := range list {
			path[c.Name] = c.JSONPath
		}
		if path["Ready"] != ready+"status" || path["Message"] != ready+"message" {
			t.Errorf("%s: the column Ready is %q, Message is %q", kind, path["Ready"], path["Message"])
		}
		if last := list[len(list)-1]; last.Name != "Message" || last.Priority != 0 {
			t.Errorf("%s: the last column is %s: a long message would move the others", kind, last.Name)
		}
	}
}

// TestDefaultColumns: the default view fits into a terminal, and -o wide has the columns of Kube-OVN in their order.
func TestDefaultColumns(t *testing.T) {
	byKind := columns(t)
	for kind, want := range map[string]struct{ narrow, more []string }{
		"Subnet": {
			[]string{"Vpc", "CIDR", "V4Used", "V4Available", "V6Used", "V6Available", "Ready", "Age", "Message"},
			[]string{"Provider", "Vlan", "Protocol", "Private", "NAT", "Default", "GatewayType", "ExcludeIPs", "U2OInterconnectionIP"},
		},
		"Vpc": {
			[]string{"Subnets", "Namespaces", "Age", "Ready", "Message"},
			[]string{"EnableExternal", "EnableBfd", "Standby", "ExtraExternalSubnets", "DefaultSubnet"},
		},
		"IPPool": {[]string{"Subnet", "IPs", "V4Used", "V4Available", "V6Used", "V6Available", "Ready", "Age", "Message"}, []string{"enableAddressSet"}},
		"Vip":    {[]string{"Namespace", "V4IP", "V6IP", "Subnet", "Ready", "Age", "Message"}, []string{"Mac", "Type"}},
		"OvnEip": {[]string{"V4IP", "V6IP", "Nat", "Ready", "ExternalSubnet", "Age", "Message"}, []string{"Mac", "Type"}},
	} {
		var narrow, more []string
		for _, c := range byKind[kind] {
			if c.Priority == 0 {
				narrow = append(narrow, c.Name)
			} else {
				more = append(more, c.Name)
			}
		}
		if !slices.Equal(narrow, want.narrow) || !slices.Equal(more, want.more) {
			t.Errorf("%s: %v, and with -o wide %v", kind, narrow, more)
		}
	}
}
