// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

const (
	// maxNodeConditions is the maximum number of nodes with a condition of their own, so that the status stays small.
	maxNodeConditions = 100
	// maxNodeMessage is the maximum length of a node's message, in bytes.
	maxNodeMessage = 300
	// maxNodeEvents is the maximum number of events about nodes in one pass.
	maxNodeEvents = 10
	// reasonNoReport is the reason of a node whose agent has reported nothing yet.
	reasonNoReport = "NotReported"
	// reasonNodes is the reason of a network of which nodes are not ready.
	reasonNodes = "NodesNotReady"
	// reasonNoNode is the reason of a network that selects no node.
	reasonNoNode = "NoNode"
)

// Reports of nodes are batched: each write of the status sends the whole object to all agents, and a node can change its report at any time.
const (
	reportDelay = time.Second
	reportEvery = 10 * time.Second
)

// ProviderReconciler computes the status of ProviderNetworks from the reports of agents on Nodes, and retains deleted ones while Vlans use
// them.
type ProviderReconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	Gate     *reconciler.StartGate
	// ReportDelay and ReportEvery replace reportDelay and reportEvery if they are not zero.
	ReportDelay, ReportEvery time.Duration
	// TurnTime and TurnPause replace turnTime and turnPause if they are not zero.
	TurnTime, TurnPause time.Duration

	reports reconciler.Paced
	// holder is the network whose node has its turn.
	holder string
}

// SetupWithManager registers the reconciler. It enqueues a ProviderNetwork for changes of: the ProviderNetwork; its Vlans; the end of a turn in another
// network; and, batched, labels, reports and losses of nodes. VlanReconciler adds the index that it uses.
func (r *ProviderReconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	r.reports.Delay, r.reports.Every = cmp.Or(r.ReportDelay, reportDelay), cmp.Or(r.ReportEvery, reportEvery)
	vlans := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return k8s.Requests(o.(*kubeovnv1.Vlan).Spec.Provider)
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.ProviderNetwork{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.ProviderNetwork{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(turnEnds())).
		Watches(&kubeovnv1.Vlan{}, vlans, builder.WithPredicates(k8s.ComesOrGoes)).
		Watches(&corev1.Node{}, r.onNode()).
		WatchesRawSource(&r.reports).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

func (r *ProviderReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.ProviderNetworkList{})
}

// turnEnds passes ProviderNetworks that had a node with its turn.
func turnEnds() predicate.Predicate {
	has := func(o client.Object) bool { return o.(*kubeovnv1.ProviderNetwork).Status.Turn != nil }
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return has(e.ObjectOld) && !has(e.ObjectNew) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return has(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// onNode reports the networks whose status a change of a node can change.
func (r *ProviderReconciler) onNode() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ k8s.Queue) { r.changed(ctx, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ k8s.Queue) { r.changed(ctx, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ k8s.Queue) { r.changed(ctx, e.Object, nil) },
	}
}

func (r *ProviderReconciler) changed(ctx context.Context, before, after client.Object) {
	var networks kubeovnv1.ProviderNetworkList
	if err := r.Client.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
		return // the cache is stopping
	}
	for i := range networks.Items {
		if pn := &networks.Items[i]; viewReport(pn, before) != viewReport(pn, after) {
			r.reports.Changed(pn.Name)
		}
	}
}

// report is the part of a node that the status of a network depends on.
type report struct {
	selected, lost bool
	ready, cause   string
}

// viewReport returns the report of a node about a network. node may be nil.
func viewReport(pn *kubeovnv1.ProviderNetwork, node client.Object) report {
	if node == nil {
		return report{}
	}
	selected, err := pn.Spec.Selects(node.GetName(), node.GetLabels())
	if err != nil || !selected {
		return report{}
	}
	return report{
		selected: true,
		lost:     isLost(node.(*corev1.Node)),
		ready:    node.GetLabels()[kubeovnv1.ProviderKey(pn.Name, kubeovnv1.ProviderReady)],
		cause:    node.GetAnnotations()[kubeovnv1.ProviderKey(pn.Name, kubeovnv1.ProviderError)],
	}
}

// Reconcile brings the status of one ProviderNetwork up to date. It removes the finalizer of a deleted one without Vlans; nodes remove their
// bridges when the object is deleted.
func (r *ProviderReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pn, err := k8s.Find[kubeovnv1.ProviderNetwork](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("get ProviderNetwork: %w", err)
	}
	if pn == nil {
		nodeCounts.Delete(req.Name)
		r.hold(req.Name, nil)
		return ctrl.Result{}, nil
	}
	var using kubeovnv1.VlanList
	if err := r.Client.List(ctx, &using, client.MatchingFields{indexProvider: pn.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list Vlans of ProviderNetwork %s: %w", pn.Name, err)
	}
	vlans := make([]string, 0, len(using.Items))
	for i := range using.Items {
		vlans = append(vlans, using.Items[i].Name)
	}
	slices.Sort(vlans)
	if pn.DeletionTimestamp == nil {
		if err := k8s.AddFinalizer(ctx, r.Client, pn); err != nil {
			return ctrl.Result{}, err
		}
	} else if len(vlans) == 0 {
		return ctrl.Result{}, k8s.RemoveFinalizer(ctx, r.Client, pn)
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list nodes: %w", err)
	}
	base := pn.DeepCopy()
	free, err := r.othersWait(ctx, pn)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.setStatus(pn, vlans, nodes.Items, free)
	r.hold(pn.Name, pn.Status.Turn)
	if turn := pn.Status.Turn; turn != nil && turn.Withdrawn && turn.Generation == pn.Generation && base.Status.Turn != nil && !base.Status.Turn.Withdrawn {
		k8s.Warn(r.Recorder, pn, reasonTurnUnused, fmt.Sprintf("node %s has its turn and does not begin: the next node that waits gets it. See the pods "+
			"kube-ovn-cni and ovs-ovn of node %s", turn.Node, turn.Node))
	}
	k8s.WarnAnew(r.Recorder, pn, base.Status.OwnConditions(), pn.Status.OwnConditions(),
		kubeovnv1.ConditionValidated, kubeovnv1.ConditionReady, kubeovnv1.ConditionFieldsSupported)
	r.warnOfNodes(pn, base.Status)
	nodeCounts.Set([]string{pn.Name}, float64(len(pn.Status.ReadyNodes)), float64(len(pn.Status.NotReadyNodes)))
	return ctrl.Result{RequeueAfter: max(0, r.turnLeft(pn.Status.Turn))}, k8s.PatchStatus(ctx, r.Client, base, pn)
}

// warnOfNodes sends an event about each node that was ready before, was not ready for another reason, or has a new warning. A node that has not reported
// yet, or waits for its turn, is no reason for an event.
func (r *ProviderReconciler) warnOfNodes(pn *kubeovnv1.ProviderNetwork, before kubeovnv1.ProviderNetworkStatus) {
	events := 0
	for _, c := range pn.Status.Conditions {
		if c.Node == "" || c.Reason == reasonAwaitingTurn || c.Reason == reasonNoReport && !slices.Contains(before.ReadyNodes, c.Node) ||
			slices.ContainsFunc(before.Conditions, func(old kubeovnv1.ProviderNetworkCondition) bool {
				return old.Node == c.Node && old.Type == c.Type && old.Reason == c.Reason && old.Message == c.Message
			}) {
			continue
		}
		if events++; events > maxNodeEvents {
			return // the condition Ready lists the nodes that are not ready
		}
		about := "node " + c.Node
		if c.Type == kubeovnv1.ConditionReady {
			about += " is not ready"
		}
		k8s.Warn(r.Recorder, pn, c.Reason, about+": "+c.Message)
	}
}

// setStatus computes the status of a ProviderNetwork from its spec and from the reports of nodes. free says that no node of another network has
// its turn.
func (r *ProviderReconciler) setStatus(pn *kubeovnv1.ProviderNetwork, vlans []string, nodes []corev1.Node, free bool) {
	problem := validation.ProviderNetwork(pn.Name, &pn.Spec)
	status := kubeovnv1.ProviderNetworkStatus{Vlans: vlans}
	var causes, warnings []kubeovnv1.ProviderNetworkCondition
	lost := map[string]bool{}
	for i := range nodes {
		node := &nodes[i]
		lost[node.Name] = isLost(node)
		cause := causeOf(pn, node)
		if problem != nil { // agents keep their bridges
			if cause != nil || !slices.Contains(pn.Status.ReadyNodes, node.Name) {
				continue
			}
		} else if selected, err := pn.Spec.Selects(node.Name, node.Labels); err != nil || !selected {
			continue
		}
		if cause == nil {
			status.ReadyNodes = append(status.ReadyNodes, node.Name)
			if reason, text, _ := reportedCause(pn, node); reason == kubeovnv1.ReasonAddressNotReached {
				warnings = append(warnings, kubeovnv1.ProviderNetworkCondition{Node: node.Name, Condition: metav1.Condition{
					Type: kubeovnv1.ConditionAddressesReached, Status: metav1.ConditionFalse, Reason: reason, Message: text,
				}})
			}
			continue
		}
		status.NotReadyNodes = append(status.NotReadyNodes, node.Name)
		causes = append(causes, kubeovnv1.ProviderNetworkCondition{Node: node.Name, Condition: *cause})
	}
	slices.Sort(status.ReadyNodes)
	slices.Sort(status.NotReadyNodes)
	for _, of := range [][]kubeovnv1.ProviderNetworkCondition{causes, warnings} {
		slices.SortFunc(of, func(a, b kubeovnv1.ProviderNetworkCondition) int { return strings.Compare(a.Node, b.Node) })
	}
	if pn.DeletionTimestamp == nil {
		status.Turn = r.nextTurn(pn, causes, lost, free)
	}
	ready := networkReady(pn, vlans, &status, causes)
	if problem != nil {
		ready = k8s.NotValid(problem)
	}
	status.Ready = ready.Status == metav1.ConditionTrue
	own := pn.Status.OwnConditions()
	k8s.SetConditions(&own, pn.Generation, k8s.Validated(problem), ready, k8s.FieldsSupported(validation.IgnoredProviderNetworkFields(&pn.Spec)))
	for _, c := range own {
		status.Conditions = append(status.Conditions, kubeovnv1.ProviderNetworkCondition{Condition: c})
	}
	ofNodes := append(causes, warnings...)
	for _, cause := range ofNodes[:min(len(ofNodes), maxNodeConditions)] {
		var before []metav1.Condition
		for _, c := range pn.Status.Conditions {
			if c.Node == cause.Node && c.Type == cause.Type {
				before = append(before, c.Condition)
			}
		}
		k8s.SetConditions(&before, pn.Generation, cause.Condition) // keeps lastTransitionTime
		cause.Condition = *meta.FindStatusCondition(before, cause.Type)
		status.Conditions = append(status.Conditions, cause)
	}
	pn.Status = status
}

// causeOf returns the condition of a node that is not ready, nil for a ready node.
func causeOf(pn *kubeovnv1.ProviderNetwork, node *corev1.Node) *metav1.Condition {
	if node.Labels[kubeovnv1.ProviderKey(pn.Name, kubeovnv1.ProviderReady)] == "true" {
		return nil
	}
	cause := k8s.NotReady(reasonNoReport, "the agent of the node has reported nothing yet: see the pod kube-ovn-cni of this node")
	if reason, text, found := reportedCause(pn, node); found {
		cause = k8s.NotReady(reason, text)
	}
	return &cause
}

// reportedCause returns the cause that the node reports: why it is not ready, or, if it is ready, a warning.
func reportedCause(pn *kubeovnv1.ProviderNetwork, node *corev1.Node) (reason, text string, found bool) {
	reason, text, found = strings.Cut(node.Annotations[kubeovnv1.ProviderKey(pn.Name, kubeovnv1.ProviderError)], ": ")
	return reason, printable(text), found && isReason(reason)
}

// printable returns the printable characters of a node's message, at most maxNodeMessage bytes.
func printable(text string) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, text[:min(len(text), 2*maxNodeMessage)])
	if ellipsis := "…"; len(text) > maxNodeMessage {
		text = strings.ToValidUTF8(text[:maxNodeMessage-len(ellipsis)], "") + ellipsis
	}
	return text
}

// isReason reports whether a word is a reason of conditions (metav1.Condition).
func isReason(word string) bool {
	letters := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	return word != "" && len(word) <= 64 && !strings.ContainsFunc(word, func(c rune) bool { return !letters(c) })
}

// networkReady returns the condition Ready of a valid network.
func networkReady(pn *kubeovnv1.ProviderNetwork, vlans []string, status *kubeovnv1.ProviderNetworkStatus,
	causes []kubeovnv1.ProviderNetworkCondition) metav1.Condition {
	switch {
	case pn.DeletionTimestamp != nil:
		return k8s.NotReady(reasonInUse, "deleted when no Vlan uses it: "+k8s.Some(vlans, maxListed))
	case len(causes) > 0:
		first := causes[0]
		for _, c := range causes {
			if status.Turn != nil && c.Node == status.Turn.Node {
				first = c
			}
		}
		return k8s.NotReady(reasonNodes, fmt.Sprintf("%d of %d nodes are not ready: %s; node %s: %s", len(causes),
			len(causes)+len(status.ReadyNodes), k8s.Some(status.NotReadyNodes, maxListed), first.Node, first.Message))
	case len(status.ReadyNodes) == 0:
		return k8s.NotReady(reasonNoNode, "no node is selected: change nodeSelector or excludeNodes")
	}
	ready := k8s.Ready(nil, nil)
	ready.Message = "the bridge works on each selected node"
	return ready
}
