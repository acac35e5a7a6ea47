// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api tests the resource definitions in a real API server.
package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	kubeovnv1alpha1 "github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// api is a client of the API server. It rejects unknown fields, as kubectl does.
var api client.Client

func TestMain(m *testing.M) {
	server, err := apiserver.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(server.Run(func(config *rest.Config) int {
		scheme := runtime.NewScheme()
		err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), kubeovnv1alpha1.AddToScheme(scheme))
		c, err2 := client.New(config, client.Options{Scheme: scheme})
		if err := errors.Join(err, err2); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		api = client.WithFieldValidation(c, metav1.FieldValidationStrict)
		return m.Run()
	}))
}

// objects reads the documents of a YAML file.
func objects(t *testing.T, text []byte) []*unstructured.Unstructured {
	t.Helper()
	var list []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, object)
	}
}

func TestManifestsForKubeOVNAndSamplesApplyUnchanged(t *testing.T) {
	for _, name := range []string{"web", "machines", "guests", "indigo"} {
		for _, object := range []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}},
		} {
			if err := client.IgnoreAlreadyExists(api.Create(t.Context(), object)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var files []string
	for _, pattern := range []string{"testdata/accepted/*.yaml", "../config/samples/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no files are %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		if name := filepath.Base(file); name == "kustomization.yaml" || name == "namespaces.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects(t, text) {
			t.Run(filepath.Base(file)+"/"+object.GetKind()+"/"+object.GetName(), func(t *testing.T) {
				want := object.DeepCopy()
				if err := api.Create(t.Context(), object, client.DryRunAll); err != nil {
					t.Fatal(err)
				}
				if object.GetKind() != "Pod" {
					requireKept(t, "spec", want.Object["spec"], object.Object["spec"])
				}
			})
		}
	}
}

// requireKept checks that every field in want has the same value in got. Defaults may be added.
func requireKept(t *testing.T, path string, want, got any) {
	t.Helper()
	fields, ok := want.(map[string]any)
	if !ok {
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Errorf("%s became %v, was %v", path, got, want)
		}
		return
	}
	kept, _ := got.(map[string]any)
	for name, value := range fields {
		requireKept(t, path+"."+name, value, kept[name])
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct{ name, kind, spec, err string }{
		{"text as CIDR", "Subnet", `cidrBlock: ten`, `spec.cidrBlock: Invalid value: "ten": must be one CIDR, or one of each family`},
		{"an address as CIDR", "Subnet", `cidrBlock: 10.0.0.1`, "must be one CIDR"},
		{"two CIDRs of a family", "Subnet", `cidrBlock: 10.0.0.0/24,10.0.1.0/24`, "must be one CIDR"},
		{"three CIDRs", "Subnet", `cidrBlock: "10.0.0.0/24,fd00::/64,fd01::/64"`, "must be one CIDR"},
		{"a CIDR as gateway", "Subnet", `{cidrBlock: 10.0.0.0/24, gateway: 10.0.0.1/24}`, `spec.gateway: Invalid value: "10.0.0.1/24": must be one address`},
		{"a range with three ends", "Subnet", `excludeIps: [10.0.0.1..10.0.0.2..10.0.0.3]`, "spec.excludeIps[0]"},
		{"a range with a hyphen", "Subnet", `excludeIps: [10.0.0.1, 10.0.0.1-10.0.0.2]`, "spec.excludeIps[1]"},
		{"another gateway type", "Subnet", `gatewayType: local`, `supported values: "", "distributed", "centralized"`},
		{"another protocol", "Subnet", `protocol: IPX`, `supported values: "", "IPv4", "IPv6", "Dual", "Mac"`},
		{"a gateway node with text as address", "Subnet", `gatewayNode: "a, b:x"`, `spec.gatewayNode: Invalid value: "a, b:x": must be names of nodes with commas between them`},
		{"another action of a NAT rule", "Subnet", `natOutgoingPolicyRules: [{action: drop}]`, `supported values: "nat", "forward"`},
		{"text in a NAT rule", "Subnet", `natOutgoingPolicyRules: [{action: nat, match: {dstIPs: "192.0.2.1,outside"}}]`, "natOutgoingPolicyRules[0].match.dstIPs"},
		{"text as external gateway", "Subnet", `externalEgressGateway: gw`, "spec.externalEgressGateway"},
		{"an external gateway and NAT", "Subnet", `{externalEgressGateway: 192.0.2.1, natOutgoing: true}`, "exclude each other"},
		{"a routing table of two words", "Subnet", `routeTable: "to the moon"`, "spec.routeTable"},
		{"a routing table with a null", "Subnet", `routeTable: "a\0b"`, "spec.routeTable"},
		{"a route in a table of two words", "Vpc", `staticRoutes: [{cidr: 10.0.0.0/8, nextHopIP: 10.0.0.1, routeTable: "to the moon"}]`, "spec.staticRoutes[0].routeTable"},
		{"a negative MTU", "Subnet", `mtu: -1`, "spec.mtu"},
		{"an ACL without a known action", "Subnet", `acls: [{action: deny, direction: to-lport, match: ip, priority: 1}]`, "spec.acls[0].action"},
		{"the field that nodeInterface has replaced", "ProviderNetwork", `{defaultInterface: eth1, managedInterface: Move}`, `unknown field "spec.managedInterface"`},
		{"a former value of nodeInterface", "ProviderNetwork", `{defaultInterface: eth1, nodeInterface: Move}`, `supported values: "Refuse", "Static", "All"`},
		{"an unknown field", "Subnet", `cidrblock: 10.0.0.0/24`, `unknown field "spec.cidrblock"`},
		{"a route to text", "Vpc", `staticRoutes: [{cidr: all, nextHopIP: 10.0.0.1}]`, `spec.staticRoutes[0].cidr: Invalid value: "all": must be a CIDR or an address`},
		{"a next hop that is a network", "Vpc", `staticRoutes: [{cidr: 10.0.0.0/8, nextHopIP: 10.0.0.0/8}]`, `spec.staticRoutes[0].nextHopIP: Invalid value: "10.0.0.0/8": must be an address`},
		{"another action", "Vpc", `policyRoutes: [{action: deny, match: ip, priority: 1}]`, `supported values: "allow", "drop", "reroute"`},
		{"a priority beyond OVN's", "Vpc", `policyRoutes: [{action: drop, match: ip, priority: 40000}]`, "spec.policyRoutes[0].priority"},
		{"a peering without prefix length", "Vpc", `vpcPeerings: [{remoteVpc: b, localConnectIP: 169.254.0.1}]`, "spec.vpcPeerings[0].localConnectIP"},
		{"a mirror of everything by mistake", "TrafficMirror", `{sink: 192.0.2.1, key: 1}`, "podSelector: {} selects all pods of the cluster"},
		{"a loopback sink", "TrafficMirror", `{sink: 127.0.0.1, key: 1, vpc: a}`, `spec.sink: Invalid value: "127.0.0.1": must be an IPv4 or IPv6 address that nodes can route packets to`},
		{"a multicast sink", "TrafficMirror", `{sink: "ff0e::1", key: 1, vpc: a}`, "spec.sink"},
		{"an unspecified sink", "TrafficMirror", `{sink: 0.0.0.0, key: 1, vpc: a}`, "spec.sink"},
		{"a link-local sink", "TrafficMirror", `{sink: "fe80::1", key: 1, vpc: a}`, "spec.sink"},
		{"a name as sink", "TrafficMirror", `{sink: collector.example.com, key: 1, vpc: a}`, "spec.sink"},
		{"a session beyond ERSPAN's", "TrafficMirror", `{type: erspan, sink: 192.0.2.1, key: 1024, vpc: a}`, "ERSPAN has 10 bits"},
		{"a key beyond GRE's", "TrafficMirror", `{sink: 192.0.2.1, key: 4294967296, vpc: a}`, "spec.key"},
		{"another direction of copies", "TrafficMirror", `{sink: 192.0.2.1, key: 1, vpc: a, direction: both}`, `supported values: "To", "From", "Both"`},
		{"another type of copies", "TrafficMirror", `{type: vxlan, sink: 192.0.2.1, key: 1, vpc: a}`, `supported values: "gre", "erspan"`},
		{"an egress address without a selector of namespaces", "EgressAddress", `{ovnEip: out}`, "spec.namespaceSelector"},
		{"an egress address without addresses", "EgressAddress", `{namespaceSelector: {}}`, "write ovnEip, or addresses with nodeSelector"},
		{"egress addresses and an OvnEip", "EgressAddress", `{namespaceSelector: {}, ovnEip: out, addresses: [192.0.2.1], nodeSelector: {}}`, "write ovnEip, or addresses"},
		{"egress addresses without nodes", "EgressAddress", `{namespaceSelector: {}, addresses: [192.0.2.1]}`, "write addresses and nodeSelector together"},
		{"nodes for an OvnEip", "EgressAddress", `{namespaceSelector: {}, ovnEip: out, nodeSelector: {}}`, "write addresses and nodeSelector together"},
		{"egress addresses on nodes for a custom VPC", "EgressAddress", `{vpc: blue, namespaceSelector: {}, addresses: [192.0.2.1], nodeSelector: {}}`, "write ovnEip instead of addresses"},
		{"two egress addresses of a family", "EgressAddress", `{namespaceSelector: {}, addresses: [192.0.2.1, 192.0.2.2], nodeSelector: {}}`, "at most one address of each family"},
		{"a loopback egress address", "EgressAddress", `{namespaceSelector: {}, addresses: [127.0.0.1], nodeSelector: {}}`, "must be IPv4 or IPv6 addresses that routers forward"},
		{"an egress address in another form", "EgressAddress", `{namespaceSelector: {}, addresses: [192.0.2.1/24], nodeSelector: {}}`, "must be IPv4 or IPv6 addresses that routers forward"},
		{"IPv6 as IPv4", "IP", `v4IpAddress: fd00::1`, `spec.v4IpAddress: Invalid value: "fd00::1": must be an IPv4 address, such as 10.16.0.9`},

		{"a selector as of kubectl", "SwitchLBRule", `{vip: 1.1.1.1, selector: ["app=web"], ports: [{port: 80}]}`, `spec.selector[0]: Invalid value: "app=web": must be a label as key:value: write app:web`},
		{"a selector that is no label", "SwitchLBRule", `{vip: 1.1.1.1, selector: ["app!=web"], ports: [{port: 80}]}`, "must be a label as key:value, such as app:web"},
		{"a selector as of kubectl", "RouterLBRule", `{selector: ["app==web"], ports: [{port: 80}]}`, "write app:web"},
		{"a selector as of kubectl", "Vip", `selector: ["app=web"]`, "write app:web"},
		{"one port twice", "SwitchLBRule", `{vip: 1.1.1.1, ports: [{port: 80, targetPort: 80}, {port: 80, targetPort: 81, protocol: TCP}]}`, "spec.ports: Invalid value: a port of one protocol can be there once only: remove one of the two"},
		{"a remote address of another family", "SecurityGroup", `ingressRules: [{ipVersion: ipv6, protocol: all, priority: 1, remoteType: address, remoteAddress: 10.0.0.1, policy: allow}]`,
			`remoteAddress "10.0.0.1" must be an address or a CIDR of the family in ipVersion, ipv6`},
		{"a local address that is none", "SecurityGroup", `ingressRules: [{ipVersion: ipv4, protocol: all, priority: 1, remoteType: address, remoteAddress: 10.0.0.1, localAddress: a, policy: allow}]`,
			`localAddress "a" must be an address`},
		{"a namespace that cannot exist", "SecurityGroup", `allowedNamespaces: ["team a"]`, `spec.allowedNamespaces[0]: Invalid value: "team a": must be the name of a namespace, or * for all`},
		{"a namespace that cannot exist", "Vip", `allowedNamespaces: ["*", "team_a"]`, "spec.allowedNamespaces[1]"},
		{"one port of two", "SecurityGroup", `ingressRules: [{ipVersion: ipv4, protocol: tcp, priority: 1, remoteType: address, remoteAddress: 10.0.0.1, portRangeMin: 80, policy: allow}]`,
			"portRangeMin and portRangeMax go together: write both"},
		{"reversed ports", "SecurityGroup", `ingressRules: [{ipVersion: ipv4, protocol: tcp, priority: 1, remoteType: address, remoteAddress: 10.0.0.1, portRangeMin: 90, portRangeMax: 80, policy: allow}]`,
			"portRangeMin is above portRangeMax: exchange them"},
		{"ports from 0", "SecurityGroup", `ingressRules: [{ipVersion: ipv4, protocol: udp, priority: 1, remoteType: address, remoteAddress: 10.0.0.1, portRangeMin: 0, portRangeMax: 80, policy: allow}]`,
			"portRangeMin 0 is no port: write the lowest port, or leave both out"},
		{"reversed source ports", "SecurityGroup", `egressRules: [{ipVersion: ipv6, protocol: tcp, priority: 1, remoteType: address, remoteAddress: "fd00::1", sourcePortRangeMin: 90, sourcePortRangeMax: 80, policy: allow}]`,
			"sourcePortRangeMin is above sourcePortRangeMax: exchange them"},
		{"fewer addresses than replicas", "VpcEgressGateway", `{replicas: 2, externalSubnet: e, internalIPs: [10.0.0.1], selectors: [{podSelector: {matchLabels: {a: b}}}]}`,
			"internalIPs must be at least as many as replicas: add addresses, or lower replicas"},
		{"an issuer of another kind", "OVNCluster", `certificates: {issuerRef: {name: a, kind: Role, group: cert-manager.io}}`, "and not Role"},

		{"two CIDRs of pods of a family", "OVNCluster", `network: {podCIDRs: [10.0.0.0/16, 10.1.0.0/16]}`, "spec.network.podCIDRs: Invalid value: must have at most one CIDR of each family: remove one of 10.0.0.0/16 and 10.1.0.0/16"},
		{"bits after the prefix length", "OVNCluster", `network: {podCIDRs: [10.0.0.1/16]}`, "must be CIDRs without bits after the prefix length, such as 10.16.0.0/16, and are 10.0.0.1/16"},
		{"text as CIDR of Services", "OVNCluster", `network: {serviceCIDRs: [services]}`, "must be CIDRs without bits after the prefix length, such as 10.16.0.0/16, and are services"},
		{"three CIDRs of Services", "OVNCluster", `network: {serviceCIDRs: [10.96.0.0/16, fd00::/112, fd01::/112]}`, "Too many"},
		{"a limit that would stop pods", "OVNCluster", `network: {controlPlaneProtection: {packetsPerSecond: {dhcp: 5}}}`, "spec.network.controlPlaneProtection.packetsPerSecond.dhcp"},
		{"another mode of limits", "OVNCluster", `network: {controlPlaneProtection: {mode: "Off"}}`, `supported values: "Limited", "Unlimited"`},
		{"no CIDRs of pods", "OVNCluster", `network: {podCIDRs: []}`, "spec.network.podCIDRs"},
		{"Services by agents that cannot reach the API server", "OVNCluster", `services: {nodeAccess: Kiln}`, "needs apiServer"},
		{"a join CIDR of another family", "OVNCluster", `network: {joinCIDRs: ["fd00:100:64::/112"]}`, "joinCIDRs must have the families of podCIDRs: fd00:100:64::/112 does not fit 10.16.0.0/16"},
		{"a join CIDR of one family only", "OVNCluster", `network: {podCIDRs: [10.0.0.0/16, "fd00::/64"], joinCIDRs: [100.64.0.0/16]}`, "joinCIDRs must have the families of podCIDRs"},
		{"pods in the addresses of Services", "OVNCluster", `network: {podCIDRs: [10.100.0.0/16]}`, "podCIDRs and serviceCIDRs must not overlap: change 10.100.0.0/16, or set serviceCIDRs to those of the API server, which are 10.96.0.0/12 here"},
		{"pods around the addresses of nodes", "OVNCluster", `network: {podCIDRs: [100.0.0.0/8], joinCIDRs: [100.64.0.0/16]}`, "joinCIDRs must overlap neither with podCIDRs nor with serviceCIDRs: change 100.64.0.0/16, because the others are 100.0.0.0/8 and 10.96.0.0/12"},
		{"a BGP peer without an address", "OVNCluster", `speaker: {asn: 64512, peers: [{address: router, asn: 64513}]}`, "address must be an IP address"},
		{"one BGP peer twice", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 192.0.2.1, asn: 1}, {address: 192.0.2.1, asn: 2}]}`, "spec.speaker.peers[1]: Duplicate value"},
		{"a BGP peer in another spelling", "OVNCluster", `speaker: {asn: 64512, peers: [{address: "2001:DB8::1", asn: 1}, {address: "2001:db8::1", asn: 2}]}`, "address must be in canonical form"},
		{"a BGP peer on the node itself", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 127.0.0.1, asn: 1}]}`, "and not unspecified, loopback, link-local or multicast"},
		{"a BGP peer with a link-local address", "OVNCluster", `speaker: {asn: 64512, peers: [{address: "fe80::1", asn: 1}]}`, "and not unspecified, loopback, link-local or multicast"},
		{"a BGP peer with a multicast address", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 224.0.0.1, asn: 1}]}`, "and not unspecified, loopback, link-local or multicast"},
		{"a local preference that GoBGP ignores", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 192.0.2.1, asn: 1, localPreference: 0}]}`, "spec.speaker.peers[0].localPreference"},
		{"BFD with external routers, too short", "OVNCluster", `network: {externalGateways: {bfd: {minTransmit: 10ms}}}`, "minTransmit is 50ms to 60s"},
		{"BFD with external routers, too long", "OVNCluster", `network: {externalGateways: {bfd: {minReceive: 61s}}}`, "minReceive is 50ms to 60s"},
		{"BFD with external routers, one packet", "OVNCluster", `network: {externalGateways: {bfd: {multiplier: 1}}}`, "multiplier"},
		{"BFD over several hops", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 192.0.2.1, asn: 1, multihopTTL: 3, bfd: {}}]}`, "bfd is for directly connected peers"},
		{"IPv6 next hops over IPv4", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 192.0.2.1, asn: 1, extendedNextHop: Enabled}]}`, "extendedNextHop needs a peer with an IPv6 address"},
		{"a pool of load balancers with a name as address", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: [public]}]}`, "must be unicast addresses, ranges like 192.0.2.10..192.0.2.20, or CIDRs without bits after the prefix length, and are public"},
		{"a pool of load balancers with bits after the prefix", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: [192.0.2.1/24]}]}`, "must be unicast addresses"},
		{"a pool of load balancers with all addresses", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: ["::/0"]}]}`, "must be unicast addresses"},
		{"a pool of load balancers with loopback addresses", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: [127.0.0.1..127.0.0.9]}]}`, "must be unicast addresses"},
		{"a range of two families", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: ["192.0.2.1..2001:db8::1"]}]}`, "must be unicast addresses"},
		{"a pool without addresses", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: []}]}`, "spec.services.loadBalancerPools[0].addresses"},
		{"two pools of a class", "OVNCluster", `services: {loadBalancerPools: [{class: example.com/a, addresses: [192.0.2.1]}, {class: example.com/a, addresses: [192.0.2.2]}]}`, "Duplicate value"},
		{"the class of OvnEips", "OVNCluster", `services: {loadBalancerPools: [{class: kubeovn.io/ovn-eip, addresses: [192.0.2.1]}]}`, "is the class of Services with the addresses of OvnEips"},
		{"a class without a domain", "OVNCluster", `services: {loadBalancerPools: [{class: public, addresses: [192.0.2.1]}]}`,
			`spec.services.loadBalancerPools[0].class: Invalid value: "public": must be a domain and a name, such as example.com/public`},
		{"a limit without a number", "Subnet", `podLimits: {ingressRate: fast}`, "spec.podLimits.ingressRate"},
		{"a negative limit", "Subnet", `podLimits: {egressRate: -1M}`, "spec.podLimits.egressRate"},
		{"a limit with an exponent", "Subnet", `podLimits: {egressRate: 1e9}`, "spec.podLimits.egressRate"},
		{"a limit that blocks", "Subnet", `podLimits: {egressRate: 10k, egressBurst: 9.999k}`, "must be from 10k to 1T"},
		{"a huge limit", "OVNCluster", `tenancy: {podLimits: {ingressRate: 1T, ingressBurst: 1.001T}}`, "must be from 10k to 1T"},
		{"a burst without its rate", "Subnet", `podLimits: {egressRate: 1M, ingressBurst: 1M}`, "a burst needs the rate of its direction"},
		{"a burst of the cluster without its rate", "OVNCluster", `tenancy: {podLimits: {egressBurst: 1M}}`, "a burst needs the rate of its direction"},
		{"no prefixes", "OVNCluster", `speaker: {asn: 64512, maxPrefixesPerNamespace: -1}`, "spec.speaker.maxPrefixesPerNamespace"},
		{"a hold time of a second", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 192.0.2.1, asn: 1, holdTime: 1s}]}`, "holdTime is 3s to 65535s"},
		{"a community that is too large", "OVNCluster", `speaker: {asn: 64512, peers: [{address: 192.0.2.1, asn: 1, communities: ["65536:1"]}]}`, `spec.speaker.peers[0].communities[0]: Invalid value: "65536:1": must be two numbers up to 65535`},
		{"no number of the autonomous system", "OVNCluster", `speaker: {}`, "spec.speaker.asn: Required value"},
		{"userspace without interface", "OVNCluster", `nodes: {datapath: Userspace}`, "tunnelInterface is required with datapath Userspace"},
		{"another datapath", "OVNCluster", `nodes: {datapath: Hardware}`, "spec.nodes.datapath"},
		{"a gateway outside podCIDRs", "OVNCluster", `network: {podGateways: [10.17.0.1]}`, "podGateways must be addresses in podCIDRs"},
		{"a gateway of another family", "OVNCluster", `network: {podGateways: ["fd00::1"]}`, "podGateways must be addresses in podCIDRs"},
		{"two gateways of a CIDR", "OVNCluster", `network: {podGateways: [10.16.0.1, 10.16.0.2]}`, "at most one in each CIDR"},
		{"text as gateway", "OVNCluster", `network: {podGateways: [first]}`, "must be addresses"},
		{"exclusions outside podCIDRs", "OVNCluster", `network: {excludeIPs: [10.16.0.9, 10.17.0.9]}`, "excludeIPs must be in podCIDRs"},
		{"a range that ends outside podCIDRs", "OVNCluster", `network: {excludeIPs: [10.16.0.9..10.17.0.9]}`, "excludeIPs must be in podCIDRs"},
		{"a range with a hyphen as exclusion", "OVNCluster", `network: {excludeIPs: [10.16.0.9-10.16.0.10]}`, "must be addresses, or ranges like"},
		{"another component for pods", "OVNCluster", `services: {podAccess: Cilium}`, `supported values: "OVN", "Node"`},
		{"a switch as policies", "OVNCluster", `policies: {networkPolicies: "true"}`, `supported values: "Enforced", "Ignored"`},
		{"a path as priority", "OVNCluster", `agent: {cniConfPriority: "../01"}`, "spec.agent.cniConfPriority"},
		{"a number as priority", "OVNCluster", `agent: {cniConfPriority: 10}`, "spec.agent.cniConfPriority"},
		{"a relative directory for the plugin", "OVNCluster", `agent: {toolingDirectory: bin}`, `spec.agent.toolingDirectory: Invalid value: "bin": must be an absolute path`},
		{"a directory for the plugin with a space", "OVNCluster", `agent: {toolingDirectory: /usr/local bin}`, "spec.agent.toolingDirectory"},
		{"a directory for the plugin with ..", "OVNCluster", `agent: {toolingDirectory: /usr/../etc}`, "must not contain the element .."},
		{"two members", "OVNCluster", `central: {replicas: 2}`, "spec.central.replicas"},
		{"a toleration of any key with a value", "OVNCluster", `central: {tolerations: [{value: x}]}`, "one with another operator has a key"},
		{"a toleration of existence with a value", "OVNCluster", `controller: {tolerations: [{key: a, operator: Exists, value: x}]}`, "operator Exists has no value"},
		{"a toleration for a time of another effect", "OVNCluster", `central: {tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]}`, "needs the effect NoExecute"},
		{"another pull policy", "OVNCluster", `imagePullPolicy: Sometimes`, `supported values: "Always", "IfNotPresent", "Never"`},
		{"a pull secret without name", "OVNCluster", `imagePullSecrets: [{}]`, "has a name"},
		{"a pull secret twice", "OVNCluster", `imagePullSecrets: [{name: a}, {name: a}]`, "Duplicate value"},
		{"an interface name too long", "OVNCluster", `nodes: {tunnelInterface: interface-of-tunnels}`, "spec.nodes.tunnelInterface"},
	}
	for _, tt := range tests {
		t.Run(tt.kind+" with "+tt.name, func(t *testing.T) {
			version := "v1"
			if tt.kind == "OVNCluster" {
				version = "v1alpha1"
			}
			text := fmt.Sprintf("apiVersion: kubeovn.io/%s\nkind: %s\nmetadata: {name: default}\nspec:\n  %s\n", version, tt.kind, tt.spec)
			object := objects(t, []byte(text))[0]
			if tt.kind == "VpcEgressGateway" {
				object.SetNamespace("default")
			}
			err := api.Create(t.Context(), object, client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

func TestAClusterHasOneOVNCluster(t *testing.T) {
	second := &kubeovnv1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "second"}}
	if err := api.Create(t.Context(), second); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "an OVNCluster must be named default, and not second: a cluster has one network") {
		t.Errorf("got %v", err)
	}
}

func TestDefaults(t *testing.T) {
	cluster := objects(t, []byte("apiVersion: kubeovn.io/v1alpha1\nkind: OVNCluster\nmetadata: {name: default}\nspec: {}\n"))[0]
	if err := api.Create(t.Context(), cluster, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	var typed kubeovnv1alpha1.OVNCluster
	convert(t, cluster, &typed)
	network, nodes := typed.Spec.Network, typed.Spec.Nodes
	got := strings.TrimSpace(fmt.Sprintln(network.PodCIDRs, network.ServiceCIDRs, network.TunnelType, nodes.Datapath, typed.Spec.Central.Replicas, typed.Spec.Central.NorthdReplicas, typed.Spec.Controller.Replicas, typed.Spec.Agent.CNIBinDirectory, typed.Spec.Pinger.Mode))
	if want := "[10.16.0.0/16] [10.96.0.0/12] geneve Kernel 0 0 0 /opt/cni/bin Enabled"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "defaults"}}
	if err := api.Create(t.Context(), vpc, client.DryRunAll); err != nil {
		t.Errorf("an empty Vpc: %v", err)
	}
}

// A status that Kube-OVN wrote must not block later changes of the object.
func TestObjectsWithKubeOVNStatusCanBeChanged(t *testing.T) {
	ctx := t.Context()
	subnet := objects(t, []byte("apiVersion: kubeovn.io/v1\nkind: Subnet\nmetadata: {name: old}\nspec: {cidrBlock: 10.70.0.0/16}\n"))[0]
	if err := api.Create(ctx, subnet); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), subnet) })
	subnet.Object["status"] = map[string]any{
		"v4availableIPs": 65533.0, "v4usingIPs": int64(0), "v6availableIPs": 1.8446744073709552e19, "v4usingIPrange": "",
		"conditions": []any{
			map[string]any{"type": "Validated", "status": "True", "reason": "", "message": "", "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"},
			map[string]any{"type": "Error", "status": ""},
		},
	}
	if err := api.Status().Update(ctx, subnet); err != nil {
		t.Fatalf("write the status that Kube-OVN would: %v", err)
	}
	var typed kubeovnv1.Subnet
	if err := api.Get(ctx, client.ObjectKey{Name: "old"}, &typed); err != nil {
		t.Fatal(err)
	}
	if n := typed.Status.V6AvailableIPs; n != 1<<64 {
		t.Errorf("a /64 has %v addresses", n)
	}
	typed.Spec.Namespaces = []string{"a"}
	if err := api.Update(ctx, &typed); err != nil {
		t.Errorf("change the spec: %v", err)
	}
	typed.Status.ActivateGateway = "node1"
	if err := api.Status().Update(ctx, &typed); err != nil {
		t.Errorf("change the status: %v", err)
	}
	if len(typed.Status.Conditions) != 2 {
		t.Errorf("conditions: %+v", typed.Status.Conditions)
	}
}

func TestBoundsTakeLongLists(t *testing.T) {
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "long"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "fd00:10::/48"}}
	for i := range 4096 {
		subnet.Spec.ExcludeIPs = append(subnet.Spec.ExcludeIPs, fmt.Sprintf("fd00:10:0:ffff:ffff:ffff:%x:0000..fd00:10:0:ffff:ffff:ffff:%x:ffff", i, i))
	}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "long"}}
	for i := range 1024 {
		vpc.Spec.StaticRoutes = append(vpc.Spec.StaticRoutes, &kubeovnv1.StaticRoute{CIDR: fmt.Sprintf("fd00:%x::/32", i), NextHopIP: "fd00::1"})
		vpc.Spec.PolicyRoutes = append(vpc.Spec.PolicyRoutes, &kubeovnv1.PolicyRoute{Match: "ip6", Action: "reroute", NextHopIP: "fd00::1,fd00::2", Priority: i})
	}
	for _, object := range []client.Object{subnet, vpc} {
		if err := api.Create(t.Context(), object, client.DryRunAll); err != nil {
			t.Errorf("%T: %v", object, err)
		}
	}
}

func convert(t *testing.T, from *unstructured.Unstructured, to any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to); err != nil {
		t.Fatal(err)
	}
}
