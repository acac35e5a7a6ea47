// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package underlay requests the bridges of provider networks from `kiln ovs` (internal/node/providerbridge), and reports them on the node's Node.
package underlay

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxMessage is the maximum length of a message in an annotation, in bytes.
const maxMessage = 1000

// Reasons of a node that is not ready, in addition to the reasons in providerbridge.
const (
	reasonWaiting = "Waiting"
	reasonMoving  = "Moving"
)

// Reasons of events of the node.
const (
	eventMoved    = "InterfaceMoved"
	eventReturned = "InterfaceReturned"
)

// managedLabels are the labels of a provider network that the agent writes, and removes.
var managedLabels = []string{v1.ProviderReady, v1.ProviderInterface, v1.ProviderMTU, v1.ProviderMoved}

// reasonsNotMoved are the reasons of interfaces that are not in a bridge. An interface whose addresses had moved has them back then. With another reason,
// such as an error, it may still be in the bridge.
var reasonsNotMoved = []providerbridge.Reason{
	providerbridge.ReasonUnsuitable, providerbridge.ReasonNoCarrier, providerbridge.ReasonManaged, providerbridge.ReasonNamed,
	providerbridge.ReasonUnreachable, providerbridge.ReasonAwaitingTurn, providerbridge.ReasonRolledBack,
}

// Reconciler requests the bridges of the provider networks that select this node.
type Reconciler struct {
	// Client reads from the cache, Live from the API server.
	Client   client.Client
	Live     client.Reader
	Node     string
	Bridge   *ovs.Bridge
	Recorder events.EventRecorder
	// Neighbours report gateways that do not answer. Their Changed is set by SetupWithManager.
	Neighbours *Neighbours
	// MTUChanged is called when the MTU of a provider network may have changed. It does not block.
	MTUChanged func()

	requests k8s.RequestSource
	last     map[string]providerbridge.Result
	moved    map[string]providerbridge.Result // the last result of each bridge that has taken over addresses, until the interface has them back
}

// SetupWithManager registers the reconciler. It runs a pass for changes of ProviderNetworks, of the node's labels and annotations, of
// Open vSwitch's settings, which have the results, and of gateways that do not answer.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.Neighbours.Changed = func() { r.requests.Add(r.Node) }
	r.Bridge.Subscribe(func(name string) {
		if name == "" {
			r.requests.Add(r.Node)
		}
	})
	own := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return k8s.Requests(r.Node) })
	err := ctrl.NewControllerManagedBy(mgr).
		Named("underlay").
		Watches(&v1.ProviderNetwork{}, own, builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, k8s.Changed(r.hasTurn)))).
		Watches(&corev1.Node{}, own, builder.WithPredicates(predicate.Or[client.Object](
			predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesRawSource(&r.requests).
		WithOptions(k8s.Workers(1)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of provider networks: %w", err)
	}
	return nil
}

func (r *Reconciler) hasTurn(pn *v1.ProviderNetwork) bool { return pn.HasTurn(r.Node) }

// Reconcile runs a pass. This node is the only object of the queue.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: r.Node}, node); err != nil {
		return ctrl.Result{}, fmt.Errorf("read node %s: %w", r.Node, err)
	}
	var networks v1.ProviderNetworkList
	if err := r.Client.List(ctx, &networks, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list ProviderNetworks: %w", err)
	}
	ids, err := r.Bridge.ExternalIDs(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	wanted, err := r.wanted(ctx, node, networks.Items, ids)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.Bridge.RequestProviders(ctx, wanted); err != nil {
		return ctrl.Result{}, err
	}
	results := providerbridge.Results(ids)
	r.remember(ctx, node, results)
	again, err := r.report(ctx, node, wanted, results)
	return ctrl.Result{RequeueAfter: again}, err
}

// wanted returns the requests for the networks that select the node. A network whose spec is not valid keeps the request that it has.
func (r *Reconciler) wanted(ctx context.Context, node *corev1.Node, networks []v1.ProviderNetwork,
	ids map[string]string) (map[string]providerbridge.Request, error) {
	have, _ := providerbridge.Requests(ids)
	wanted := map[string]providerbridge.Request{}
	for i := range networks {
		pn := &networks[i]
		if validation.ProviderNetwork(pn.Name, &pn.Spec) != nil {
			if old, found := have[pn.Name]; found {
				wanted[pn.Name] = old
			}
			continue
		}
		if selected, err := pn.Spec.Selects(node.Name, node.Labels); err != nil || !selected {
			continue
		}
		request := providerbridge.Request{
			Interface: pn.Spec.InterfaceOf(node.Name), NodeInterface: providerbridge.NodeInterface(pn.Spec.NodeInterface),
			Turn:       pn.HasTurn(node.Name),
			CreateVLAN: pn.Spec.AutoCreateVlanSubinterfaces,
			Attempt:    string(pn.UID) + "/" + strconv.FormatInt(pn.Generation, 10),
		}
		if old, found := have[pn.Name]; found && old.Attempt == request.Attempt {
			request.Peers = old.Peers
		} else {
			peers, err := r.peers(ctx)
			if err != nil {
				return nil, err
			}
			request.Peers = peers
		}
		wanted[pn.Name] = request
	}
	return wanted, nil
}

// peers returns at most MaxPeers addresses of other nodes, so four nodes with both families. It reads a few nodes only, and only for a new request: the agent's cache has no other node.
func (r *Reconciler) peers(ctx context.Context) ([]netip.Addr, error) {
	var nodes corev1.NodeList
	if err := r.Live.List(ctx, &nodes, client.Limit(providerbridge.MaxPeers+1)); err != nil {
		return nil, fmt.Errorf("list other nodes: %w", err)
	}
	var peers []netip.Addr
	for i := range nodes.Items {
		if nodes.Items[i].Name != r.Node {
			peers = append(peers, k8s.InternalIPs(&nodes.Items[i])...)
		}
	}
	return peers[:min(len(peers), providerbridge.MaxPeers)], nil
}

// remember logs changes of states, reports the moves of interfaces as events of the node, and reports changes of the MTU.
func (r *Reconciler) remember(ctx context.Context, node *corev1.Node, results map[string]providerbridge.Result) {
	changed := false
	for provider, result := range results {
		before := r.last[provider]
		if before.State != result.State || before.Reason != result.Reason {
			log.FromContext(ctx).Info("the bridge of a provider network has changed", "provider network", provider,
				"state", result.State, "reason", result.Reason, "message", result.Message)
			r.event(node, provider, before, result)
		}
		changed = changed || before.MTU != result.MTU
	}
	r.returns(node, results)
	if r.last = results; changed {
		r.MTUChanged()
	}
}

// event reports that an interface has moved to the bridge of a provider network, or has returned.
func (r *Reconciler) event(node *corev1.Node, provider string, before, result providerbridge.Result) {
	switch {
	case result.Reason == providerbridge.ReasonRolledBack:
		k8s.Warn(r.Recorder, node, eventReturned, fmt.Sprintf("ProviderNetwork %s: %s", provider, result.Message))
	case result.State == providerbridge.StateReady && result.Moved > 0 && before.State != "" && before.State != providerbridge.StateReady:
		r.Recorder.Eventf(node, nil, corev1.EventTypeNormal, eventMoved, "Move", "ProviderNetwork %s: bridge %s has taken over %d addresses of interface %s",
			provider, providerbridge.Bridge(provider), result.Moved, result.Interface)
	}
}

// returns reports interfaces that have their addresses back, and remembers which bridges have addresses. event reports moves that were rolled back.
func (r *Reconciler) returns(node *corev1.Node, results map[string]providerbridge.Result) {
	for _, provider := range slices.Sorted(maps.Keys(r.moved)) {
		before := r.moved[provider]
		result, found := results[provider]
		if found && !hasReturned(before, result) {
			continue
		}
		delete(r.moved, provider)
		if result.Reason == providerbridge.ReasonRolledBack {
			continue
		}
		message := fmt.Sprintf("ProviderNetwork %s: interface %s has its addresses back from bridge %s", provider, before.Interface, providerbridge.Bridge(provider))
		if result.State == providerbridge.StateFailed {
			message += ": " + result.Message
		}
		k8s.Note(r.Recorder, node, eventReturned, message)
	}
	for provider, result := range results {
		if result.State == providerbridge.StateReady && result.Moved > 0 {
			if r.moved == nil {
				r.moved = map[string]providerbridge.Result{}
			}
			r.moved[provider] = result
		}
	}
}

// hasReturned reports whether a result shows that the interface of an earlier result is no longer in the bridge.
func hasReturned(before, result providerbridge.Result) bool {
	switch result.State {
	case providerbridge.StateReady:
		return result.Interface != before.Interface
	case providerbridge.StateFailed:
		return slices.Contains(reasonsNotMoved, result.Reason)
	}
	return result.State == providerbridge.StateMoving
}

// report writes the states of the wanted bridges on the Node, in one patch, or nothing if the Node has them. It returns the time after which a
// gateway is no longer reported, 0 for none.
func (r *Reconciler) report(ctx context.Context, node *corev1.Node, wanted map[string]providerbridge.Request,
	results map[string]providerbridge.Result) (again time.Duration, err error) {
	labels, annotations := map[string]string{}, map[string]string{}
	for provider, request := range wanted {
		set := func(to map[string]string, name, value string) { to[v1.ProviderKey(provider, name)] = value }
		if silent, left := r.Neighbours.Silent(provider); len(silent) > 0 {
			set(annotations, v1.ProviderSilentGateways, v1.FormatSilentGateways(silent))
			if again == 0 || left < again {
				again = left
			}
		}
		result, cause := results[provider], ""
		switch {
		case result.Interface != request.Interface || result.State == "":
			cause = reasonWaiting + ": kiln ovs has not made the bridge yet: see the pod ovs-ovn of this node"
		case result.State == providerbridge.StateReady:
			set(labels, v1.ProviderReady, "true")
			set(labels, v1.ProviderInterface, result.Interface)
			set(labels, v1.ProviderMTU, strconv.Itoa(result.MTU))
			if result.Moved > 0 {
				set(labels, v1.ProviderMoved, "true")
			}
			if result.Message == "" {
				continue
			}
			cause = v1.ReasonAddressNotReached + ": " + result.Message
		case result.State == providerbridge.StateFailed:
			cause = string(result.Reason) + ": " + result.Message
		default:
			cause = reasonMoving + ": kiln ovs moves interface " + result.Interface
		}
		set(annotations, v1.ProviderError, shortened(cause))
	}
	changes := map[string]map[string]any{
		"labels":      differences(node.Labels, labels, managedLabels...),
		"annotations": differences(node.Annotations, annotations, v1.ProviderError, v1.ProviderSilentGateways),
	}
	if len(changes["labels"]) == 0 && len(changes["annotations"]) == 0 {
		return again, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": changes})
	if err != nil {
		return 0, fmt.Errorf("encode the states of provider networks: %w", err)
	}
	if err := r.Client.Status().Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, fmt.Errorf("report provider networks on node %s: %w", node.Name, err)
	}
	return again, nil
}

// shortened returns the first bytes of a message that fit into an annotation, without a part of a character: the API server would store another text, and
// each pass would write the annotation again.
func shortened(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

// differences returns the changes, for a merge patch, after which the keys of provider networks with these names have the values in want.
func differences(have, want map[string]string, names ...string) map[string]any {
	changes := map[string]any{}
	for key := range have {
		prefix, name, _ := strings.Cut(key, "/")
		if _, wanted := want[key]; wanted || !strings.HasSuffix(prefix, v1.ProviderKeySuffix) {
			continue
		}
		for _, managed := range names {
			if name == managed {
				changes[key] = nil
			}
		}
	}
	for key, value := range want {
		if old, found := have[key]; !found || old != value {
			changes[key] = value
		}
	}
	return changes
}

// MTU returns the MTU of a provider network's interface on this node. The error says why the bridge does not work.
func MTU(ctx context.Context, bridge *ovs.Bridge, provider string) (int, error) {
	ready, err := readyResult(ctx, bridge, provider)
	return ready.MTU, err
}

// readyResult returns the result of a provider network whose bridge works on this node.
func readyResult(ctx context.Context, bridge *ovs.Bridge, provider string) (providerbridge.Result, error) {
	ids, err := bridge.ExternalIDs(ctx)
	if err != nil {
		return providerbridge.Result{}, err
	}
	result := providerbridge.Results(ids)[provider]
	if result.State != providerbridge.StateReady {
		return providerbridge.Result{}, fmt.Errorf("ProviderNetwork %s is not ready on this node: its status says why", provider)
	}
	return result, nil
}
