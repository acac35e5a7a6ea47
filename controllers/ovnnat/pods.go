// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// ReasonAddress is the reason of events on pods whose annotations eip or snat are not applied.
const ReasonAddress = "ExternalAddressNotApplied"

// Indexes of the cache.
const (
	indexOwner = "ovnnat.owner" // rules of pods, and pods with ports of other owners, by the owner of the port
)

// podRequests are the annotations of pods, and the kinds of the rules that they request.
var podRequests = []struct {
	annotation kubeovnv1.Annotation
	kind       string
}{{kubeovnv1.AnnotationEip, translate.KindOvnFip}, {kubeovnv1.AnnotationSnat, translate.KindOvnSnatRule}}

// podRules makes an OvnFip of the annotation eip of a pod, and an OvnSnatRule of the annotation snat, while an OvnEip with the addresses lists the pod's namespace. A pod without
// these annotations has an OvnSnatRule for the OvnEip of the EgressAddress that selects it. A rule
// has the name of the pod's IP. A rule with another OvnEip is deleted and created again: as a changed one, it would keep its last valid OvnEip, which may no longer list the
// namespace.
//
// Its requests are owners of ports (kubeovnv1.Port). Several pods have the port of a virtual machine while it migrates: the pod that has the IP decides, so that the rule stays.
type podRules struct {
	*Reconciler

	// asking has the owners of ports by the addresses that their pods request, and by the names of their rules.
	asking  interest.Index[types.NamespacedName, string]
	reports reconciler.Reports[podReport, podProblem]

	// spent has the numbers of requests of each namespace, of all pods once counted is set. requests enqueues owners whose verdicts have changed.
	spent    budget.Budget
	counted  bool
	requests k8s.RequestSource
}

// podReport identifies the events about an annotation of the pod with a port, and podProblem is the last one.
type podReport struct {
	owner      types.NamespacedName
	annotation kubeovnv1.Annotation
}

type podProblem struct {
	uid  types.UID
	text string
}

// setup registers the controller. It enqueues the owner of a port for changes of: the requests and the network of its pods; the EgressAddress that selects them; its IP; the
// OvnEips with the addresses; its rules; other rules with their names; the OvnFip that has its OvnEip; its verdict by the bound of the namespace; and, for pods that keep an
// EgressAddress because a request is not served, the rules and the state of the requested OvnEip, and the VPC.
func (r *podRules) setup(ctx context.Context, mgr ctrl.Manager) error {
	r.Sets.Observe(r.selectionChanged)
	indexer := mgr.GetFieldIndexer()
	err := indexer.IndexField(ctx, &corev1.Pod{}, indexOwner, indexedOwner)
	b := ctrl.NewControllerManagedBy(mgr).Named("podrules").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{k8s.RequestOf(ownerOf(o))}
		}), builder.WithPredicates(r.changedRequests()))
	for _, request := range podRequests {
		err = errors.Join(err, indexer.IndexField(ctx, lookup.EmptyNATRule(request.kind), indexOwner, ownersOf))
		b = b.Watches(lookup.EmptyNATRule(request.kind), handler.EnqueueRequestsFromMapFunc(r.ofRule), builder.WithPredicates(k8s.Changed(viewPodRule)))
	}
	b = b.Watches(&kubeovnv1.OvnFip{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor), builder.WithPredicates(deleted))
	for _, kind := range kubeovnv1.NATKinds {
		b = b.Watches(lookup.EmptyNATRule(kind.Kind), handler.EnqueueRequestsFromMapFunc(r.blocked), builder.WithPredicates(released))
	}
	if err != nil {
		return fmt.Errorf("index rules of pods: %w", err)
	}
	return b.
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.askingFor), builder.WithPredicates(k8s.Changed(viewGrant))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.blockedAt), builder.WithPredicates(k8s.Changed(viewBlocking))).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.blockedIn), builder.WithPredicates(k8s.Changed(viewVpc))).
		Watches(&kubeovnv1.IP{}, handler.EnqueueRequestsFromMapFunc(r.named), builder.WithPredicates(k8s.Changed(viewOwner))).
		WatchesRawSource(&r.requests).
		WatchesRawSource(source.Func(func(_ context.Context, q k8s.Queue) error {
			q.Add(reconcile.Request{}) // once the gate is open, it enqueues the pods that EgressAddresses select
			return nil
		})).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// deleted passes the ends of objects.
var deleted = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(event.UpdateEvent) bool { return false },
}

// changedRequests passes the events of pods whose part of viewRequests changed.
func (r *podRules) changedRequests() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return r.viewRequests(e.Object) != "" },
		DeleteFunc: func(e event.DeleteEvent) bool { return r.viewRequests(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool { return r.viewRequests(e.ObjectOld) != r.viewRequests(e.ObjectNew) },
	}
}

// viewRequests is the part of a pod on which its rules depend; "" for a pod without a request, unless it runs a virtual machine: then it can have the port for which another pod
// requests addresses.
func (r *podRules) viewRequests(o client.Object) string {
	pod := o.(*corev1.Pod)
	var texts []string
	for _, request := range podRequests {
		if text := pod.Annotations[request.annotation.Key()]; text != "" {
			texts = append(texts, request.kind+" "+text)
		}
	}
	owner, selected := ownerOf(pod), r.selecting(pod)
	if len(texts) == 0 && owner.Name == pod.Name && selected.Eip == "" {
		return ""
	}
	return fmt.Sprint(texts, pod.UID, allocations.OnPodNetwork(pod), kubeovnv1.IsPublished(pod), owner)
}

// indexedOwner returns the name of the owner of a pod's port, if it is not the pod.
func indexedOwner(pod client.Object) []string {
	if owner := ownerOf(pod); owner.Name != pod.GetName() {
		return []string{owner.Name}
	}
	return nil
}

// ownerOf returns the owner of a pod's port.
func ownerOf(pod client.Object) types.NamespacedName {
	return kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN).Key()
}

// portOf returns the port of an owner.
func portOf(owner types.NamespacedName) kubeovnv1.Port {
	return kubeovnv1.NewPort(owner.Namespace, owner.Name, kubeovnv1.ProviderOVN)
}

// viewPodRule is the part of a rule of a pod of which the pod has events; "" for other rules.
func viewPodRule(o client.Object) string {
	if len(ownersOf(o)) == 0 {
		return ""
	}
	return fmt.Sprint(o.GetGeneration(), o.GetDeletionTimestamp() != nil, whyNotApplied(o))
}

func viewGrant(eip *kubeovnv1.OvnEip) string {
	return fmt.Sprint(eip.Spec.AllowedNamespaces, eip.DeletionTimestamp != nil, lookup.AddressesOfEip(eip))
}

// viewOwner is the pod of an IP. A reservation has none until its pod comes.
func viewOwner(ip *kubeovnv1.IP) string { return ip.Spec.Namespace + "/" + ip.Spec.PodName }

// ownersOf returns the owner of the port for which a pod requested a rule, in the form `namespace/name`; none for other rules.
func ownersOf(o client.Object) []string {
	if owner := o.GetAnnotations()[kubeovnv1.PodOfRule]; owner != "" {
		return []string{owner}
	}
	return nil
}

// ofRule returns the owner of the port for which a pod requested a rule, and owners that wait for the name of another rule.
func (r *podRules) ofRule(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.named(ctx, o)
	for _, owner := range ownersOf(o) {
		namespace, name, _ := strings.Cut(owner, "/")
		requests = append(requests, k8s.RequestOf(types.NamespacedName{Namespace: namespace, Name: name}))
	}
	return requests
}

// named returns the owners whose rules have the name of an object.
func (r *podRules) named(_ context.Context, o client.Object) []reconcile.Request {
	return r.by("name/" + o.GetName())
}

// askingFor returns the owners whose pods request addresses of an OvnEip, or have them by an EgressAddress.
func (r *podRules) askingFor(_ context.Context, o client.Object) []reconcile.Request {
	return r.by(append(lookup.AddressesOfEip(o), "eip/"+o.GetName())...)
}

func (r *podRules) by(keys ...string) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range keys {
		for _, owner := range r.asking.Of(key) {
			requests = append(requests, k8s.RequestOf(owner))
		}
	}
	return requests
}

// Reconcile brings the rules of one port up to date.
func (r *podRules) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.count(ctx); err != nil || req.Name == "" {
		return ctrl.Result{}, err
	}
	pod, err := r.podAt(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.await(req.NamespacedName, pod)
	if err := r.spend(ctx, req.NamespacedName, pod); err != nil {
		return ctrl.Result{}, err
	}
	for _, request := range podRequests {
		why, requestErr := r.bring(ctx, req.NamespacedName, pod, request.kind, request.annotation)
		if err = errors.Join(err, requestErr); requestErr != nil {
			continue
		}
		problem := podProblem{}
		if why != "" {
			problem = podProblem{pod.UID, why}
		}
		if r.reports.New(podReport{req.NamespacedName, request.annotation}, problem) {
			k8s.Warn(r.Recorder, pod, ReasonAddress, why)
		}
	}
	return ctrl.Result{}, err
}

// await records the addresses and names for which an owner is enqueued.
func (r *podRules) await(owner types.NamespacedName, pod *corev1.Pod) {
	var keys []string
	for _, request := range podRequests {
		for _, a := range requested(pod, request.annotation) {
			keys = append(keys, a.String())
		}
	}
	if pod != nil && r.selecting(pod).Eip != "" {
		keys = append(keys, "eip/"+r.selecting(pod).Eip)
	}
	if len(keys) > 0 {
		keys = append(keys, "name/"+portOf(owner).Name)
	}
	r.asking.Set(owner, keys...)
}

func requested(pod *corev1.Pod, annotation kubeovnv1.Annotation) []netip.Addr {
	if pod == nil {
		return nil
	}
	return kubeovnv1.ParseExternal(pod.Annotations, annotation)
}

// follow makes the rule of a kind with an OvnEip, and deletes others. It returns why the rule is not applied; "" if it is, or soon will be.
func (r *podRules) follow(ctx context.Context, owner types.NamespacedName, kind string, eip *kubeovnv1.OvnEip, selected podset.Selector) (string, error) {
	var wanted client.Object
	if eip != nil {
		wanted = ruleOf(kind, owner, eip.Name)
		if selected.Eip != "" {
			wanted.GetAnnotations()[kubeovnv1.EgressOfRule] = podset.NameOf(selected.Owner)
		}
	}
	rules, err := r.rules(ctx, kind, owner)
	if err != nil {
		return "", err
	}
	for _, rule := range rules {
		same, holder := wanted != nil && rule.GetName() == wanted.GetName() && sameTranslation(rule, wanted), ""
		if same {
			if holder, err = r.holder(ctx, owner, eip.Name, rule); err != nil {
				return "", err
			}
		}
		switch {
		case rule.GetDeletionTimestamp() != nil:
		case same && holder == "":
			return whyNotApplied(rule), nil
		default:
			uid := rule.GetUID()
			if err := client.IgnoreNotFound(r.Client.Delete(ctx, rule.DeepCopyObject().(client.Object), client.Preconditions{UID: &uid})); err != nil {
				return "", fmt.Errorf("delete %s %s: %w", kind, rule.GetName(), err)
			}
		}
	}
	if wanted == nil || len(rules) > 0 {
		return "", nil // its deletion enqueues the owner
	}
	return r.create(ctx, owner, kind, eip, wanted)
}

// granted returns the OvnEip with the requested addresses, or why the pod at a port may not use them. It does not know the bound of the namespace.
func (r *podRules) granted(ctx context.Context, owner types.NamespacedName, addresses []netip.Addr) (*kubeovnv1.OvnEip, string, error) {
	if len(addresses) == 0 {
		return nil, "", nil
	}
	eip, denied, err := r.Grants.EipWith(ctx, owner.Namespace, addresses)
	if eip != nil || len(denied) > 0 || err != nil {
		return eip, strings.Join(denied, "; "), err
	}
	return nil, fmt.Sprintf("no OvnEip has %s: create one, with namespace %s in allowedNamespaces, or request other addresses", ipfamily.Join(addresses), owner.Namespace), nil
}

// create creates a rule, unless another rule has its name, or its port has no IP yet.
func (r *podRules) create(ctx context.Context, owner types.NamespacedName, kind string, eip *kubeovnv1.OvnEip, rule client.Object) (why string, err error) {
	if problem := lookup.DeletedEip(eip, false); problem != nil {
		return problem.Message, nil
	}
	if why, err = r.holder(ctx, owner, eip.Name, nil); why != "" || err != nil {
		return why, err
	}
	if is, err := r.hasIP(ctx, owner); !is || err != nil {
		return "", err
	}
	if why, err = r.foreign(ctx, kind, rule); why != "" || err != nil {
		return why, err
	}
	if err := r.Client.Create(ctx, rule, k8s.FieldOwner); err != nil {
		return "", fmt.Errorf("create %s %s: %w", kind, rule.GetName(), err)
	}
	return "", nil
}

// rules returns the rules of a kind that pods requested for the port of an owner.
func (r *podRules) rules(ctx context.Context, kind string, owner types.NamespacedName) ([]client.Object, error) {
	which := client.MatchingFields{indexOwner: owner.String()}
	var fips kubeovnv1.OvnFipList
	var snats kubeovnv1.OvnSnatRuleList
	var err error
	if kind == translate.KindOvnFip {
		err = r.Client.List(ctx, &fips, which, client.UnsafeDisableDeepCopy)
	} else {
		err = r.Client.List(ctx, &snats, which, client.UnsafeDisableDeepCopy)
	}
	if err != nil {
		return nil, fmt.Errorf("list %ss by the owner of the port: %w", kind, err)
	}
	var rules []client.Object
	for i := range fips.Items {
		rules = append(rules, &fips.Items[i])
	}
	for i := range snats.Items {
		rules = append(rules, &snats.Items[i])
	}
	return rules, nil
}

// ruleOf returns the rule that a pod requests for the port of an owner.
func ruleOf(kind string, owner types.NamespacedName, eip string) client.Object {
	port := portOf(owner).Name
	meta := metav1.ObjectMeta{Name: port, Annotations: map[string]string{kubeovnv1.PodOfRule: owner.String()}}
	if kind == translate.KindOvnFip {
		return &kubeovnv1.OvnFip{ObjectMeta: meta, Spec: kubeovnv1.OvnFipSpec{OvnEip: eip, IPName: port}}
	}
	return &kubeovnv1.OvnSnatRule{ObjectMeta: meta, Spec: kubeovnv1.OvnSnatRuleSpec{OvnEip: eip, IPName: port}}
}

// sameTranslation reports whether a rule has the spec of another one, and is of the same EgressAddress.
func sameTranslation(a, b client.Object) bool {
	if a.GetAnnotations()[kubeovnv1.EgressOfRule] != b.GetAnnotations()[kubeovnv1.EgressOfRule] {
		return false
	}
	if fip, is := a.(*kubeovnv1.OvnFip); is {
		return equality.Semantic.DeepEqual(fip.Spec, b.(*kubeovnv1.OvnFip).Spec)
	}
	return equality.Semantic.DeepEqual(a.(*kubeovnv1.OvnSnatRule).Spec, b.(*kubeovnv1.OvnSnatRule).Spec)
}

// whyNotApplied returns the cause in the condition Ready of a rule.
func whyNotApplied(o client.Object) string {
	var conditions []metav1.Condition
	switch o := o.(type) {
	case *kubeovnv1.OvnFip:
		conditions = o.Status.Conditions
	case *kubeovnv1.OvnSnatRule:
		conditions = o.Status.Conditions
	}
	why, _ := k8s.WhyNotReady(conditions, o.GetGeneration())
	return why
}
