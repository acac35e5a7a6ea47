// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Reasons of the condition Announced.
const (
	// ReasonBySpeaker: the node that has the addresses runs kube-ovn-speaker.
	ReasonBySpeaker = "BySpeaker"
	// ReasonInvalidValue: the annotation has an invalid value.
	ReasonInvalidValue = "AnnotationInvalid"
	// ReasonOfEip: addresses of OvnEips are not announced.
	ReasonOfEip = "AddressesOfOvnEip"
	// ReasonNoSpeaker: the node that has the addresses does not run kube-ovn-speaker.
	ReasonNoSpeaker = "NoSpeaker"
)

// Speakers are the nodes with kube-ovn-speaker, by the OVNCluster. The zero value has none.
type Speakers struct {
	changed k8s.RequestSource

	mu sync.Mutex
	// selector is nil without spec.speaker.
	selector map[string]string
}

// Set applies spec.speaker of the OVNCluster. It does not block.
func (s *Speakers) Set(spec *v1alpha1.OVNClusterSpec) {
	var next map[string]string
	if spec.Speaker != nil {
		next = maps.Clone(spec.Speaker.Selector())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.selector, next) {
		return
	}
	s.selector = next
	s.changed.Add("")
}

// Source enqueues a request without a name after a change.
func (s *Speakers) Source() source.Source { return &s.changed }

// nodes returns the selector of the nodes; nil without spec.speaker.
func (s *Speakers) nodes() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.selector
}

// speakersChanged enqueues the EgressAddresses with the annotation.
func (r *Reconciler) speakersChanged(ctx context.Context) error {
	var list kubeovnv1.EgressAddressList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list EgressAddresses: %w", err)
	}
	for i := range list.Items {
		if announcementOf(&list.Items[i]) != "" {
			r.moved.Add(list.Items[i].Name)
		}
	}
	return nil
}

// announcementOf returns the text of the annotation.
func announcementOf(e *kubeovnv1.EgressAddress) string {
	return e.Annotations[kubeovnv1.AnnotationBGP.Key()]
}

// announce sets the condition Announced, or removes it without the annotation. kube-ovn-speaker decides by the annotation and the status alone.
func (r *Reconciler) announce(ctx context.Context, in *inputs) error {
	conditions := &in.object.Status.Conditions
	value, err := kubeovnv1.ParseAnnouncement(announcementOf(in.object))
	if err == nil && value == kubeovnv1.AnnounceNone || in.spec == nil {
		apimeta.RemoveStatusCondition(conditions, kubeovnv1.ConditionAnnounced)
		return nil
	}
	c := metav1.Condition{Type: kubeovnv1.ConditionAnnounced, Status: metav1.ConditionFalse}
	switch selector, status := r.Speakers.nodes(), &in.object.Status; {
	case err != nil:
		c.Reason, c.Message = ReasonInvalidValue, fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), err)
	case !in.onNodes():
		c.Reason, c.Message = ReasonOfEip, "addresses of OvnEips are not announced: routers reach them in the external subnet; remove the annotation"
	case status.Node == "":
		c.Reason, c.Message = ReasonNoNode, "no node has the addresses"
	case selector == nil:
		c.Reason, c.Message = ReasonNoSpeaker, "spec.speaker of the OVNCluster is not set"
	default:
		text := labels.Set(selector).String()
		c.Status, c.Reason = metav1.ConditionTrue, ReasonBySpeaker
		c.Message = fmt.Sprintf("kube-ovn-speaker on %s announces %s", status.Node, ipfamily.Join(ipfamily.ValidAddrs(status.Addresses...)))
		if speaks, err := r.speaks(ctx, selector, status.Standby); err != nil {
			return err
		} else if !speaks {
			c.Message += fmt.Sprintf("; the standby %s has no speaker: label it with %s", status.Standby, text)
		}
		if speaks, err := r.speaks(ctx, selector, status.Node); err != nil {
			return err
		} else if !speaks {
			c.Status, c.Reason = metav1.ConditionFalse, ReasonNoSpeaker
			c.Message = fmt.Sprintf("%s has the addresses, and no speaker: label the nodes of nodeSelector with %s", status.Node, text)
		}
	}
	k8s.SetConditions(conditions, in.object.Generation, c)
	return nil
}

// speaks reports whether a node has the labels of nodes with a speaker, or there is no such node.
func (r *Reconciler) speaks(ctx context.Context, selector map[string]string, name string) (bool, error) {
	node, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return node == nil || labels.SelectorFromSet(selector).Matches(labels.Set(node.Labels)), nil
}

// later returns the present second, and at least a second after before: routers prefer the node with the latest time, also if clocks of controllers differ.
func later(before *metav1.Time) *metav1.Time {
	now := time.Now().Truncate(time.Second)
	if before != nil && !now.After(before.Time) {
		now = before.Add(time.Second)
	}
	return new(metav1.NewTime(now))
}
