// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// Reasons of v1alpha1.ConditionPeersEstablished.
const (
	reasonEstablished = "Established"
	reasonSessionDown = "SessionDown"
	reasonNoSessions  = "NoSessions"
)

// reportSpeaker sets status.speaker and the condition PeersEstablished from the conditions of the pods of kube-ovn-speaker, and removes both while
// there is no spec.speaker.
func reportSpeaker(cluster *v1alpha1.OVNCluster, seen *observed.Cluster) {
	status := &cluster.Status
	if cluster.Spec.Speaker == nil {
		status.Speaker = nil
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPeersEstablished)
		return
	}
	answering := slices.DeleteFunc(slices.Clone(seen.PodsOf(render.SpeakerName)), func(pod *corev1.Pod) bool { return observed.Silent(seen.Node(observed.MadeFor(pod))) })
	status.Speaker = speakerStatus(answering)
	c := newCondition(v1alpha1.ConditionPeersEstablished, true, reasonEstablished, fmt.Sprintf("%d BGP sessions are established", status.Speaker.Established))
	switch down := downSessions(status.Speaker); {
	case len(down) > 0:
		c = newCondition(v1alpha1.ConditionPeersEstablished, false, reasonSessionDown, fmt.Sprintf("%d of %d BGP sessions are not established: %s; see kubectl ko bgp",
			status.Speaker.Sessions-status.Speaker.Established, status.Speaker.Sessions, strings.Join(rollout.Few(down), ", ")))
	case status.Speaker.Sessions == 0:
		c = newCondition(v1alpha1.ConditionPeersEstablished, false, reasonNoSessions,
			"no node reports a BGP session: set spec.speaker.peers, and label nodes with "+v1alpha1.SpeakerNodeLabel+"=true or set spec.speaker.nodeSelector")
	}
	c.ObservedGeneration = cluster.Generation
	meta.SetStatusCondition(&status.Conditions, c)
}

// downSessions returns the sessions in status.nodes that are not established.
func downSessions(s *v1alpha1.SpeakerStatus) []string {
	var down []string
	for _, n := range s.Nodes {
		for _, peer := range n.Peers {
			if peer.State != v1alpha1.SessionEstablished {
				down = append(down, fmt.Sprintf("node %s with %s", n.Node, peer.Address))
			}
		}
	}
	return down
}

// speakerStatus returns the sessions that the pods of kube-ovn-speaker report.
func speakerStatus(pods []*corev1.Pod) *v1alpha1.SpeakerStatus {
	status := &v1alpha1.SpeakerStatus{}
	for _, pod := range pods {
		c := observed.Condition(pod, v1alpha1.PodConditionPeers)
		if c == nil || pod.Spec.NodeName == "" || slices.ContainsFunc(status.Nodes, func(n v1alpha1.SpeakerNodeStatus) bool { return n.Node == pod.Spec.NodeName }) {
			continue
		}
		node := v1alpha1.SpeakerNodeStatus{Node: pod.Spec.NodeName, Peers: parsePeers(c.Message)}
		for _, peer := range node.Peers {
			status.Sessions++
			if peer.State == v1alpha1.SessionEstablished {
				status.Established++
			}
		}
		status.Nodes = append(status.Nodes, node)
	}
	slices.SortFunc(status.Nodes, func(a, b v1alpha1.SpeakerNodeStatus) int {
		return cmp.Or(cmp.Compare(established(a), established(b)), strings.Compare(a.Node, b.Node))
	})
	status.Nodes = status.Nodes[:min(len(status.Nodes), v1alpha1.MaxSpeakerStatusNodes)]
	return status
}

// established returns 1 if all sessions of a node are established, otherwise 0.
func established(n v1alpha1.SpeakerNodeStatus) int {
	if slices.ContainsFunc(n.Peers, func(p v1alpha1.SpeakerPeerStatus) bool { return p.State != v1alpha1.SessionEstablished }) {
		return 0
	}
	return 1
}

// parsePeers parses the message of v1alpha1.PodConditionPeers: `<address> <state>`, separated by semicolons. It skips other texts, because a stolen
// token of the speaker can write the message.
func parsePeers(message string) []v1alpha1.SpeakerPeerStatus {
	var peers []v1alpha1.SpeakerPeerStatus
	for part := range strings.SplitSeq(message, "; ") {
		text, state, _ := strings.Cut(part, " ")
		address, err := netip.ParseAddr(text)
		known := state == string(v1alpha1.SessionEstablished) || state == string(v1alpha1.SessionDown)
		if err != nil || address.Zone() != "" || !known || len(peers) == v1alpha1.MaxPeers ||
			slices.ContainsFunc(peers, func(p v1alpha1.SpeakerPeerStatus) bool { return p.Address == address.String() }) {
			continue
		}
		peers = append(peers, v1alpha1.SpeakerPeerStatus{Address: address.String(), State: v1alpha1.SessionState(state)})
	}
	return peers
}
