// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
)

// checkNodes finds nodes whose addresses lie in one of the networks. If the network is not in use yet, the spec is
// invalid, because the network would cut the nodes off. If it is in use, the node is held.
func (r *Reconciler) checkNodes(ctx context.Context, p *pass, lists []cidrList) error {
	live, err := observed.Workload(ctx, p.objects, r.Namespace, render.ControllerName)
	if err != nil {
		return err
	}
	var used []netip.Prefix
	if controller, is := live.(*appsv1.Deployment); is {
		used = parsed(render.CIDRs(controller))
	} else if p.cluster.Status.Northbound.ClusterID != "" { // installed, and the Deployment was deleted by hand
		for _, list := range lists {
			used = append(used, list.cidrs...)
		}
	}
	for _, n := range slices.Concat(p.Nodes, p.Foreign) {
		address, field, cidr := within(lists, &n)
		switch {
		case field == "":
		case !slices.ContainsFunc(used, func(c netip.Prefix) bool { return c.Contains(address) }):
			return &status.Halt{Reason: "InvalidNetwork", Degraded: true, Message: fmt.Sprintf(
				"%s %s holds %s, the address of node %s: choose a CIDR that no node is in", field, cidr, address, n.Name)}
		default:
			p.holdNode(&n, fmt.Sprintf("its address %s lies in %s %s", address, field, cidr))
		}
	}
	p.findSharedAddresses()
	return nil
}

// within returns the first of a node's addresses that lies in one of the networks, with the network and its field.
// Without a match the field is empty.
func within(lists []cidrList, n *corev1.Node) (address netip.Addr, field string, cidr netip.Prefix) {
	for _, address := range k8s.InternalIPs(n) {
		for _, list := range lists {
			for _, cidr := range list.cidrs {
				if cidr.Contains(address) {
					return address, list.field, cidr
				}
			}
		}
	}
	return address, "", cidr
}

// holdNode excludes a node from the network: with an address in the network, traffic between it and other nodes would go
// to pods instead. A node that already has a network keeps it, with the pods that use it.
func (p *pass) holdNode(n *corev1.Node, why string) {
	const advice = "give the node an address outside"
	trouble := status.NodeTrouble{Nodes: []string{n.Name}, Reason: "AddressInNetwork"}
	if hadNetwork(n) || p.Node(n.Name) == nil {
		trouble.Text = fmt.Sprintf("node %s cannot be reached: %s; %s", n.Name, why, advice)
	} else {
		trouble.Text = fmt.Sprintf("node %s gets no network: %s; %s", n.Name, why, advice)
		p.config.HeldNodes = append(p.config.HeldNodes, n.Name)
	}
	p.unfit = append(p.unfit, n.Name)
	p.NodeTroubles = append(p.NodeTroubles, trouble)
}

// networkReasons are the reasons of the condition NetworkUnavailable that agents set.
var networkReasons = []string{"JoinInterfaceServing", "JoinInterfaceNotServing"}

// hadNetwork reports whether the node's agent has ever configured its network.
func hadNetwork(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && slices.Contains(networkReasons, c.Reason)
	})
}

// findSharedAddresses finds nodes with the same address: tunnels to it end at only one of them.
func (p *pass) findSharedAddresses() {
	owners := map[netip.Addr][]string{}
	var order []netip.Addr
	for _, n := range p.Nodes {
		for _, address := range k8s.InternalIPs(&n) {
			if !slices.Contains(owners[address], n.Name) {
				owners[address] = append(owners[address], n.Name)
				order = append(order, address)
			}
		}
	}
	for _, address := range order {
		if names := owners[address]; len(names) > 1 {
			delete(owners, address)
			p.NodeTroubles = append(p.NodeTroubles, status.NodeTrouble{Nodes: names, Reason: "AddressShared", Text: fmt.Sprintf(
				"nodes %s have one InternalIP, %s: give each its own address, or delete the Node that no longer exists", strings.Join(names, " and "), address)})
		}
	}
}

// troubleInterval is the shortest time between two events of a node for one reason. A kubelet can change the addresses of its Node many times a second.
const troubleInterval = time.Minute

// reportedTrouble is the text of an event on a node, and when it was created.
type reportedTrouble struct {
	text string
	at   time.Time
}

// reportNodeTroubles creates events for node troubles that no event of the node has reported yet.
func (r *Reconciler) reportNodeTroubles(p *pass) {
	reported := map[[2]string]reportedTrouble{}
	for _, trouble := range p.NodeTroubles {
		for _, name := range trouble.Nodes {
			n, key := p.Node(name), [2]string{name, trouble.Reason}
			last, known := r.reportedTroubles[key]
			if n != nil && last.text != trouble.Text && (!known || p.Now.Sub(last.at) >= troubleInterval) {
				r.Recorder.Eventf(n, p.cluster, corev1.EventTypeWarning, trouble.Reason, "Reconcile", "%s", status.EventNote(trouble.Text))
				last, known = reportedTrouble{trouble.Text, p.Now}, true
			}
			if known {
				reported[key] = last
			}
		}
	}
	for key, last := range r.reportedTroubles {
		if _, again := reported[key]; !again && p.Now.Sub(last.at) < troubleInterval {
			reported[key] = reportedTrouble{at: last.at} // solved: the same text is an event again, after the interval
		}
	}
	r.reportedTroubles = reported
}
