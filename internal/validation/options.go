// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// optionType parses the value of an option and returns it in OVN's form. The error describes the valid form.
type optionType func(value string) (string, error)

// DHCPOptions parses the DHCP options of a family, "IPv4" or "IPv6", in the form `key=value,key={value,value}`. Within curly
// brackets `;` is equivalent to `,`. The values in the result have the form that OVN's parser needs (ovn-nb(5), DHCP_Options).
func DHCPOptions(family, text string) (map[string]string, error) {
	return readOptions(text, dhcpOptions[family])
}

// RouterAdvertisements parses ipv6_ra_configs (ovn-nb(5), Logical_Router_Port), in the same form as DHCPOptions.
func RouterAdvertisements(text string) (map[string]string, error) {
	options, err := readOptions(text, routerAdvertisements)
	if err != nil {
		return nil, err
	}
	least, err1 := strconv.Atoi(options["min_interval"])
	most, err2 := strconv.Atoi(options["max_interval"])
	if err1 == nil && err2 == nil && 4*least > 3*most {
		return nil, fmt.Errorf("min_interval %d is more than three quarters of max_interval %d: lower it", least, most)
	}
	return options, nil
}

// dhcpOptions are OVN's DHCP options, except the ones that OVN sets itself.
var dhcpOptions = map[string]map[string]optionType{
	"IPv4": merged(
		each(addresses(4), "router netmask dns_server log_server lpr_server swap_server policy_filter router_solicitation nis_server ntp_server "+
			"netbios_name_server server_id tftp_server_address broadcast_address next_server"),
		each(routes, "classless_static_route ms_classless_static_route"),
		each(number(0, 1), "ip_forward_enable router_discovery ethernet_encap"),
		each(number(0, 255), "default_ttl tcp_ttl netbios_node_type"),
		each(number(68, 65535), "mtu"),
		each(number(0, 1<<32-1), "lease_time T1 T2 arp_cache_timeout tcp_keepalive_interval"),
		each(quoted, "wpad bootfile_name bootfile_name_alt path_prefix hostname domain_name domain_search_list"),
		each(addressOrText, "tftp_server"),
		each(mac, "server_mac"),
	),
	"IPv6": merged(
		each(mac, "server_id"),
		each(addresses(6), "dns_server"),
		each(quoted, "domain_search fqdn bootfile_name bootfile_name_alt"),
		each(oneOf("true", "false"), "dhcpv6_stateless"),
	),
}

var routerAdvertisements = merged(
	each(oneOf("slaac", "dhcpv6_stateful", "dhcpv6_stateless"), "address_mode"),
	each(oneOf("HIGH", "MEDIUM", "LOW"), "router_preference"),
	each(advertisedRoutes, "route_info"),
	each(number(minIPv6MTU, 65535), "mtu"),
	each(oneOf("true", "false"), "send_periodic"),
	each(number(4, 1800), "max_interval"),
	each(number(3, 1350), "min_interval"),
	each(address6, "rdnss"),
	each(domain, "dnssl"),
)

func each(t optionType, keys string) map[string]optionType {
	types := map[string]optionType{}
	for key := range strings.FieldsSeq(keys) {
		types[key] = t
	}
	return types
}

func merged(parts ...map[string]optionType) map[string]optionType {
	all := map[string]optionType{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

func readOptions(text string, known map[string]optionType) (map[string]string, error) {
	options := map[string]string{}
	for _, option := range splitOptions(text) {
		key, value, ok := strings.Cut(option, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		read, isKnown := known[key]
		switch {
		case !ok:
			return nil, fmt.Errorf("%.100q is no option: write key=value,key=value", option)
		case !isKnown:
			return nil, fmt.Errorf("there is no option %.100s: %s", key, suggestion(key, known))
		}
		if _, twice := options[key]; twice {
			return nil, fmt.Errorf("option %s is written twice: write a list as %s={a,b}", key, key)
		}
		var err error
		if options[key], err = read(value); err != nil {
			return nil, fmt.Errorf("option %s: %.100q %w", key, value, err)
		}
	}
	return options, nil
}

// suggestion returns the known options that begin like an unknown one, or else all of them.
func suggestion(key string, known map[string]optionType) string {
	names, begin := slices.Sorted(maps.Keys(known)), strings.ToLower(key[:min(len(key), similarLength)])
	similar := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(strings.ToLower(name), begin) })
	if key == "" || len(similar) == 0 {
		return "write one of " + strings.Join(names, ", ")
	}
	return "did you mean " + strings.Join(similar, " or ") + "?"
}

// similarLength is the number of letters that similar options have in common.
const similarLength = 4

// splitOptions splits at the commas outside curly brackets and quotes.
func splitOptions(text string) []string {
	var options []string
	depth, quote, from := 0, false, 0
	cut := func(to int) {
		if option := strings.TrimSpace(text[from:to]); option != "" {
			options = append(options, option)
		}
		from = to + 1
	}
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"':
			quote = !quote
		case quote:
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth == 0:
			cut(i)
		}
	}
	if from <= len(text) {
		cut(len(text))
	}
	return options
}

// list splits a value, with or without curly brackets, into its parts.
func list(value string) []string {
	if inner, ok := strings.CutPrefix(value, "{"); ok {
		value = strings.TrimSuffix(inner, "}")
	}
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
}

func braced(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// The greatest numbers of addresses, and of pairs of a route and its next hop, that fit into the 255 bytes of a DHCPv4 option
// (RFC 2132, RFC 3442). OVN does not check the length: with longer lists ovn-controller sends options that clients cannot
// parse, and it aborts beyond 64 KiB.
const (
	maxOptionAddresses = 255 / 4
	maxOptionRoutes    = 255 / 9
)

// addresses parses one address or a list of addresses, of a family: 4 or 6.
func addresses(family int) optionType {
	return func(value string) (string, error) {
		var parts []string
		for _, part := range list(value) {
			addr, err := netip.ParseAddr(part)
			if err != nil || addr.Is4() != (family == 4) || addr.Zone() != "" {
				return "", fmt.Errorf("must be an address of IPv%d, or several like {a,b}", family)
			}
			parts = append(parts, addr.String())
		}
		if len(parts) == 0 {
			return "", fmt.Errorf("must be an address of IPv%d, or several like {a,b}", family)
		}
		if len(parts) > maxOptionAddresses {
			return "", fmt.Errorf("has %d addresses: write at most %d", len(parts), maxOptionAddresses)
		}
		return braced(parts), nil
	}
}

func address6(value string) (string, error) {
	addr, err := netip.ParseAddr(value)
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		return "", fmt.Errorf("must be one address of IPv6")
	}
	return addr.String(), nil
}

// routes parses pairs of a prefix and its next hop.
func routes(value string) (string, error) {
	parts := list(value)
	if len(parts) == 0 || len(parts)%2 != 0 {
		return "", fmt.Errorf("must be pairs of a CIDR and an address, like {30.0.0.0/24,10.0.0.10,0.0.0.0/0,10.0.0.1}")
	}
	if len(parts)/2 > maxOptionRoutes {
		return "", fmt.Errorf("has %d routes: write at most %d", len(parts)/2, maxOptionRoutes)
	}
	pairs := make([]string, 0, len(parts)/2)
	for i := 0; i < len(parts); i += 2 {
		prefix, err1 := netip.ParsePrefix(parts[i])
		hop, err2 := netip.ParseAddr(parts[i+1])
		if err1 != nil || err2 != nil || !prefix.Addr().Is4() || !hop.Is4() {
			return "", fmt.Errorf("must be pairs of a CIDR and an address of IPv4, like {30.0.0.0/24,10.0.0.10}")
		}
		pairs = append(pairs, prefix.Masked().String()+","+hop.String())
	}
	return "{" + strings.Join(pairs, ", ") + "}", nil
}

// advertisedRoutes parses route_info (ovn-nb(5)): preference and prefix.
func advertisedRoutes(value string) (string, error) {
	var parts []string
	for _, part := range list(value) {
		preference, prefix, _ := strings.Cut(part, "-")
		cidr, err := netip.ParsePrefix(prefix)
		if _, wrong := oneOf("HIGH", "MEDIUM", "LOW")(preference); wrong != nil || err != nil || !cidr.Addr().Is6() {
			return "", fmt.Errorf("must be like HIGH-fd00:1::/64, or several like {HIGH-fd00:1::/64,LOW-fd00:2::/64}")
		}
		parts = append(parts, preference+"-"+cidr.Masked().String())
	}
	if len(parts) > maxOptionAddresses {
		return "", fmt.Errorf("has %d routes: write at most %d", len(parts), maxOptionAddresses)
	}
	return strings.Join(parts, ","), nil
}

func number(least, most int64) optionType {
	return func(value string) (string, error) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < least || n > most {
			return "", fmt.Errorf("must be a number from %d to %d", least, most)
		}
		return strconv.FormatInt(n, 10), nil
	}
}

func oneOf(values ...string) optionType {
	return func(value string) (string, error) {
		if !slices.Contains(values, value) {
			return "", fmt.Errorf("must be one of %s", strings.Join(values, ", "))
		}
		return value, nil
	}
}

func mac(value string) (string, error) {
	parsed, err := net.ParseMAC(value)
	if err != nil || len(parsed) != 6 {
		return "", fmt.Errorf("must be a MAC address, like 0a:00:00:00:00:01")
	}
	return parsed.String(), nil
}

// quoted parses a text, with or without double quotes, and returns it in quotes, as OVN's parser needs it.
func quoted(value string) (string, error) {
	if strings.HasPrefix(value, `"`) {
		var text string
		if json.Unmarshal([]byte(value), &text) != nil {
			return "", fmt.Errorf("must be a text; close its quotes")
		}
		value = text
	}
	printable := func(r rune) bool { return r >= ' ' && r <= '~' && r != '"' && r != '\\' }
	if value == "" || len(value) > 255 || strings.TrimFunc(value, printable) != "" {
		return "", fmt.Errorf("must be 1 to 255 letters, digits and signs of ASCII, without quotes and backslashes")
	}
	return `"` + value + `"`, nil
}

func addressOrText(value string) (string, error) {
	if addr, err := netip.ParseAddr(value); err == nil && addr.Is4() {
		return addr.String(), nil
	}
	return quoted(value)
}

// domain parses a text that has no quotes in OVN's form.
func domain(value string) (string, error) {
	text, err := quoted(value)
	return strings.Trim(text, `"`), err
}
