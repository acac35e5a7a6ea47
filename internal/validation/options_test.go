// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	tests := []struct{ name, kind, text, want, message string }{
		{name: "none", kind: "IPv4"},
		{name: "one", kind: "IPv4", text: "lease_time=60", want: "lease_time=60"},
		{name: "spaces and empty parts", kind: "IPv4", text: " lease_time = 60 , ,mtu=1400,", want: "lease_time=60 mtu=1400"},
		{name: "a list", kind: "IPv4", text: "dns_server={10.96.0.10,10.96.0.11},T1=5", want: "T1=5 dns_server={10.96.0.10, 10.96.0.11}"},
		{name: "a list with semicolons", kind: "IPv4", text: "dns_server=10.96.0.10;10.96.0.11", want: "dns_server={10.96.0.10, 10.96.0.11}"},
		{name: "a list of one", kind: "IPv4", text: "dns_server={10.96.0.10}", want: "dns_server=10.96.0.10"},
		{name: "routes", kind: "IPv4", text: "classless_static_route={30.0.0.1/24,10.0.0.10, 0.0.0.0/0,10.0.0.1}",
			want: "classless_static_route={30.0.0.0/24,10.0.0.10, 0.0.0.0/0,10.0.0.1}"},
		{name: "a text is quoted for OVN", kind: "IPv4", text: `domain_name=ovn.org,hostname="a,b"`, want: `domain_name="ovn.org" hostname="a,b"`},
		{name: "a host by address or name", kind: "IPv4", text: "tftp_server=10.0.0.1", want: "tftp_server=10.0.0.1"},
		{name: "a host by name", kind: "IPv4", text: "tftp_server=boot.example", want: `tftp_server="boot.example"`},
		{name: "IPv6", kind: "IPv6", text: "dns_server={fd00::a,fd00::b},dhcpv6_stateless=true,server_id=0A:00:00:00:00:01",
			want: "dhcpv6_stateless=true dns_server={fd00::a, fd00::b} server_id=0a:00:00:00:00:01"},
		{name: "advertisements", kind: "RA", text: "address_mode=slaac,max_interval=60,min_interval=45,route_info={HIGH-fd00:1::/64;LOW-fd00:2::/64},dnssl=a.b",
			want: "address_mode=slaac dnssl=a.b max_interval=60 min_interval=45 route_info=HIGH-fd00:1::/64,LOW-fd00:2::/64"},

		{name: "no value", kind: "IPv4", text: "lease_time", message: `"lease_time" is no option: write key=value`},
		{name: "an unknown option", kind: "IPv4", text: "lease=5", message: "there is no option lease: did you mean lease_time?"},
		{name: "an option in other letters", kind: "IPv4", text: "Router=10.0.0.1", message: "there is no option Router: did you mean router or router_discovery or router_solicitation?"},
		{name: "an option like no other", kind: "IPv4", text: "gateway=10.0.0.1", message: "there is no option gateway: write one of T1, T2"},
		{name: "what OVN fills itself", kind: "IPv4", text: "offerip=10.0.0.1", message: "no option offerip"},
		{name: "an option of the other family", kind: "IPv6", text: "lease_time=5", message: "no option lease_time"},
		{name: "twice", kind: "IPv4", text: "mtu=1400,mtu=1500", message: "written twice"},
		{name: "a number too great", kind: "IPv4", text: "lease_time=4294967296", message: "must be a number from 0 to 4294967295"},
		{name: "a small MTU", kind: "IPv4", text: "mtu=67", message: "from 68"},
		{name: "no address", kind: "IPv4", text: "router=gw", message: `option router: "gw" must be an address of IPv4`},
		{name: "an address of the other family", kind: "IPv4", text: "dns_server=fd00::a", message: "of IPv4"},
		{name: "a list that fills an option", kind: "IPv4", text: "dns_server={" + strings.Repeat("10.0.0.1,", 63) + "}",
			want: "dns_server={" + strings.Repeat("10.0.0.1, ", 62) + "10.0.0.1}"},
		{name: "a list too long for an option", kind: "IPv4", text: "dns_server={" + strings.Repeat("10.0.0.1,", 64) + "}", message: "has 64 addresses: write at most 63"},
		{name: "addresses of IPv6 for 64 KiB", kind: "IPv6", text: "dns_server={" + strings.Repeat("::,", 5000) + "}", message: "has 5000 addresses"},
		{name: "too many routes for an option", kind: "IPv4", text: "classless_static_route={" + strings.Repeat("0.0.0.0/0,10.0.0.1,", 29) + "}",
			message: "has 29 routes: write at most 28"},
		{name: "too many advertised routes", kind: "RA", text: "route_info={" + strings.Repeat("HIGH-fd00::/64,", 64) + "}", message: "has 64 routes"},
		{name: "an empty list", kind: "IPv6", text: "dns_server={}", message: "of IPv6"},
		{name: "half a route", kind: "IPv4", text: "classless_static_route={30.0.0.0/24}", message: "pairs of a CIDR"},
		{name: "no MAC", kind: "IPv6", text: "server_id=10.0.0.1", message: "must be a MAC address"},
		{name: "a text that would leave its quotes", kind: "IPv4", text: `domain_name="a\") ; drop"`, message: "without quotes"},
		{name: "a text with a quote in it", kind: "IPv4", text: `domain_name=a"b`, message: "without quotes"},
		{name: "control characters", kind: "IPv4", text: "domain_name=a\nb", message: "of ASCII"},
		{name: "another mode", kind: "RA", text: "address_mode=dhcp", message: "must be one of slaac, dhcpv6_stateful, dhcpv6_stateless"},
		{name: "intervals", kind: "RA", text: "max_interval=60,min_interval=46", message: "more than three quarters"},
		{name: "a route without preference", kind: "RA", text: "route_info=fd00::/64", message: "must be like HIGH-"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got map[string]string
			var err error
			if tt.kind == "RA" {
				got, err = RouterAdvertisements(tt.text)
			} else {
				got, err = DHCPOptions(tt.kind, tt.text)
			}
			if tt.message != "" {
				if err == nil || !strings.Contains(err.Error(), tt.message) {
					t.Fatalf("got %v and %v, want an error that says %s", got, err, tt.message)
				}
				return
			}
			var parts []string
			for _, key := range slices.Sorted(maps.Keys(got)) {
				parts = append(parts, key+"="+got[key])
			}
			if text := strings.Join(parts, " "); err != nil || text != tt.want {
				t.Errorf("got %s and %v, want %s", text, err, tt.want)
			}
		})
	}
}

// FuzzDHCPOptions searches for texts whose result OVN's parser would not read as one option per key.
func FuzzDHCPOptions(f *testing.F) {
	f.Add("dns_server={10.96.0.10,10.96.0.11},T1=5")
	f.Add(`domain_name="a,b",tftp_server=x,wpad={`)
	f.Fuzz(func(t *testing.T, text string) {
		options, err := DHCPOptions("IPv4", text)
		if err != nil {
			return
		}
		for key, value := range options {
			outside := value
			if strings.HasPrefix(value, `"`) && strings.Count(value, `"`) == 2 && strings.HasSuffix(value, `"`) {
				outside = ""
			}
			if strings.ContainsAny(outside, `"();=\`) {
				t.Errorf("%q gives %s=%s", text, key, value)
			}
			if again, err := DHCPOptions("IPv4", key+"="+value); err != nil || again[key] != value {
				t.Errorf("%s=%s reads back as %v, %v", key, value, again, err)
			}
		}
	})
}
