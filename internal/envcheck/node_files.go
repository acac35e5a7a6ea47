// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/k8s"
)

// freePorts checks that no program of the node has a port of Kiln.
func (n node) freePorts(s NodeSettings) []Finding {
	owners := map[NodePort]string{}
	// States of sockets in these files (linux/tcp_states.h): TCP_LISTEN, and TCP_CLOSE for UDP.
	for _, of := range []struct{ file, protocol, state string }{{"tcp", "tcp", "0A"}, {"tcp6", "tcp", "0A"}, {"udp", "udp", "07"}, {"udp6", "udp", "07"}} {
		for line := range strings.Lines(n.read("proc/net/" + of.file)) {
			fields := strings.Fields(line) // number, local and remote address, state, queues, timer, retransmissions, user
			if len(fields) < 8 || fields[3] != of.state {
				continue
			}
			_, port, _ := strings.Cut(fields[1], ":")
			if number, err := strconv.ParseUint(port, 16, 16); err == nil {
				owners[NodePort{of.protocol, uint16(number)}] = fields[7]
			}
		}
	}
	var found []Finding
	for _, port := range s.Ports {
		if user, used := owners[port]; used {
			found = append(found, Finding{Failed, subjectPorts, fmt.Sprintf("a program of user %s has port %d/%s, which Kiln needs: `ss -lnp%c sport = :%d` on the node names it; stop it, or move it to another port",
				user, port.Number, port.Protocol, port.Protocol[0], port.Number)})
		}
	}
	if len(found) == 0 {
		return []Finding{{OK, subjectPorts, "no other program has a port of Kiln"}}
	}
	return found
}

// cniFiles checks that the container runtime, which uses the first file of its directory in lexical order, uses Kiln's.
func (n node) cniFiles(s NodeSettings) []Finding {
	const subject = "CNI configuration"
	entries, err := fs.ReadDir(n, CNIDirectory)
	if err != nil {
		return []Finding{{Warning, subject, "the directory agent.cniConfDirectory cannot be read: no file there may precede " + s.CNIFile}}
	}
	var before []string
	for _, e := range entries { // in lexical order
		name := e.Name()
		if e.IsDir() || name >= s.CNIFile || !slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name)) {
			continue
		}
		if strings.Contains(n.read(path.Join(CNIDirectory, name)), `"multus`) {
			return []Finding{{OK, subject, fmt.Sprintf("%s is of Multus, which attaches pods to the network of its own configuration: that must be kube-ovn", name)}}
		}
		before = append(before, name)
	}
	if len(before) > 0 {
		return []Finding{{Failed, subject, fmt.Sprintf("the container runtime uses %s instead of %s: remove the files that precede it, with their CNI plugin, or set agent.cniConfPriority",
			k8s.Some(before, someNames), s.CNIFile)}}
	}
	return []Finding{{OK, subject, "no file precedes " + s.CNIFile}}
}

const subjectFirewall = "Firewalls of nodes"

// legacyRules reports tables of iptables-legacy, which nft does not list.
func (n node) legacyRules(s NodeSettings) []Finding {
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		if slices.Contains(strings.Fields(n.read("proc/net/"+file)), "filter") {
			return []Finding{{Manual, subjectFirewall, fmt.Sprintf("iptables-legacy has a table filter, whose rules are not read: `iptables-legacy -S INPUT`, and the same for ip6tables-legacy, must accept port %d/udp "+
				"and the ports of docs/operations/install.md from other nodes", TunnelPort(s.TunnelType))}}
		}
	}
	return nil
}

// nftObject is an object in the output of `nft -j list chains` (libnftables-json(5)). Other fields are ignored.
type nftObject struct {
	Table *nftTable `json:"table"`
	Chain *nftChain `json:"chain"`
}

type nftTable struct {
	Family string `json:"family"`
	Name   string `json:"name"`
}

type nftChain struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Name   string `json:"name"`
	Hook   string `json:"hook"`
	Policy string `json:"policy"`
}

// Firewall checks the output of `nft -j list chains` of a node for firewalls that may drop tunnels. Their rules are not evaluated: the probes
// between nodes show whether packets pass.
func Firewall(output []byte, s NodeSettings) []Finding {
	var list struct {
		Objects []nftObject `json:"nftables"`
	}
	if err := json.Unmarshal(output, &list); err != nil {
		return []Finding{{Warning, subjectFirewall, "the answer of nft cannot be read: firewalls were not checked"}}
	}
	var found []Finding
	add := func(text string) {
		f := Finding{Warning, subjectFirewall, fmt.Sprintf("%s: accept port %d/udp and the ports of docs/operations/install.md from other nodes", text, TunnelPort(s.TunnelType))}
		if !slices.Contains(found, f) {
			found = append(found, f)
		}
	}
	for _, o := range list.Objects {
		table := cmp.Or(o.Table, &nftTable{})
		chain := cmp.Or(o.Chain, &nftChain{})
		switch {
		case table.Name == "firewalld" || chain.Table == "firewalld":
			add(fmt.Sprintf("firewalld filters packets. `firewall-cmd --permanent --add-port=%d/udp` and `firewall-cmd --permanent --zone=trusted --add-interface=ovn0`, then `firewall-cmd --reload`, or stop it",
				TunnelPort(s.TunnelType)))
		case chain.Hook == "input" && chain.Policy == "drop":
			add(fmt.Sprintf("chain %s of table %s %s drops packets that no rule accepts", chain.Name, chain.Family, chain.Table))
		}
	}
	if len(found) == 0 {
		return []Finding{{OK, subjectFirewall, "no firewalld, and no chain of nftables that drops by default"}}
	}
	return found
}
