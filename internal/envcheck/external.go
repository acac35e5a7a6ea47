// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// bfdDuration sets an interval from milliseconds. It returns why that is impossible, or "".
func bfdDuration(into **metav1.Duration, value string) string {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n < 50 || n > 60000 {
		return "the interval must be from 50 to 60000 ms"
	}
	*into = &metav1.Duration{Duration: time.Duration(n) * time.Millisecond}
	return ""
}

func (p *proposal) bfdMultiplier(value string) string {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n < 2 || n > 50 {
		return "it must be from 2 to 50"
	}
	p.spec.Network.ExternalGateways.BFD.Multiplier = int32(n)
	return ""
}

// externalGateways compares the ConfigMap of external gateways with the objects that have its effect in Kiln.
func (c *Cluster) externalGateways() (found []Finding) {
	at := slices.IndexFunc(c.ConfigMaps, func(m corev1.ConfigMap) bool { return m.Name == v1alpha1.ExternalGatewayConfig })
	if at < 0 || strings.TrimSpace(c.ConfigMaps[at].Data["enable-external-gw"]) != "true" {
		return nil
	}
	data := c.ConfigMaps[at].Data
	lose := func(key, format string, args ...any) {
		found = append(found, Finding{Lost, "ConfigMap " + v1alpha1.ExternalGatewayConfig + " " + key, fmt.Sprintf(format, args...)})
	}
	if !c.has("Vpc", kubeovnv1.DefaultVpc, "enableExternal") {
		lose("enable-external-gw", "set enableExternal of Vpc %s", kubeovnv1.DefaultVpc)
	}
	if data["type"] == kubeovnv1.OvnFipDistributed {
		lose("type", "OvnFips without a type are centralized: set type: %s of these OvnFips", kubeovnv1.OvnFipDistributed)
	}
	if !c.has("Subnet", kubeovnv1.DefaultExternalSubnet, "vlan") {
		lose("external-gw-nic, external-gw-addr", "create a ProviderNetwork with defaultInterface %s, a Vlan, and Subnet %s with this vlan and gateway %s (docs/user/external.md)",
			orUnknown(data["external-gw-nic"]), kubeovnv1.DefaultExternalSubnet, orUnknown(address(data["external-gw-addr"])))
	}
	name := kubeovnv1.DefaultVpc + "-" + kubeovnv1.DefaultExternalSubnet
	if (data["nic-ip"] != "" || data["nic-mac"] != "") && !c.has("OvnEip", name, "type") {
		lose("nic-ip, nic-mac", "create OvnEip %s of type %s with these addresses: v4Ip %s, macAddress %s", name, kubeovnv1.OvnEipTypeLRP,
			orUnknown(address(data["nic-ip"])), orUnknown(data["nic-mac"]))
	}
	return found
}

// has reports whether there is an object whose spec sets a field.
func (c *Cluster) has(kind, name, field string) bool {
	return slices.ContainsFunc(c.Objects[kind], func(u unstructured.Unstructured) bool { return u.GetName() == name && isSet(&u, field) })
}

// address returns an address without the length of its prefix.
func address(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "/")
	return text
}

func orUnknown(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return "of your choice"
	}
	return text
}
