// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/database"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/internal/workload"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Reconciler deploys the components that the OVNCluster specifies. It is not safe for concurrent use: there is one
// OVNCluster.
type Reconciler struct {
	client.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	Recorder  events.EventRecorder
	// Namespace of the operator and every operand. Pod is the name of the operator's pod.
	Namespace, Pod string
	// Image of components if the OVNCluster names none.
	Image string
	// Admin returns the client of a database member's admin endpoint: adminapi.NewClient.
	Admin func(address netip.AddrPort, config *tls.Config) *adminapi.Client
	// Versions returns the versions of the programs in a pod: version.Get.
	Versions func(ctx context.Context, address netip.AddrPort) (version.Programs, error)
	// Server returns the version of the API server.
	Server discovery.ServerVersionInterfaceWithContext
	// Now is the clock.
	Now func() time.Time

	// Set by SetupWithManager.
	applier   *workload.Applier
	versions  *status.Versions
	upgrades  *upgrade.Replacer
	databases *database.Runner
	kinds     *optionalKinds
	// externalConfig reads the ConfigMap of external gateways.
	externalConfig client.Reader
	// certificates issues what the workloads and nodes need for TLS.
	certificates *certificates

	// reportedTroubles are the last events of nodes, by node and reason.
	reportedTroubles map[[2]string]reportedTrouble
	// newKubernetes is set once the API server is new enough.
	newKubernetes bool
}

// phases in their order. A phase that returns an error or a halt ends the pass.
var phases = []struct {
	name string
	run  func(*Reconciler, context.Context, *pass) error
}{
	{"hold the OVNCluster", (*Reconciler).hold},
	{"validate", (*Reconciler).validate},
	{"derive replicas", (*Reconciler).deriveReplicas},
	{"look for the resource definitions", (*Reconciler).requireResources},
	{"check the default subnets", (*Reconciler).checkSubnets},
	{"keep what objects allow", (*Reconciler).keepTenancy},
	{"read the nodes of external gateways", (*Reconciler).readExternalGateways},
	{"place the databases", (*Reconciler).placeDatabases},
	{"choose the data directory", (*Reconciler).chooseDirectory},
	{"offer tunnels", (*Reconciler).offerTunnels},
	{"plan replacements", (*Reconciler).planUpgrade},
	{"issue certificates", (*Reconciler).issueCertificates},
	{"grant access", (*Reconciler).grantAccess},
	{"apply admission policies", (*Reconciler).protect},
	{"keep backups on a claim", (*Reconciler).runBackups},
	{"run the databases", (*Reconciler).runDatabases},
	{"remove chassis of deleted nodes", (*Reconciler).removeChassis},
	{"finish the move of data", (*Reconciler).finishMove},
	{"change tunnels", (*Reconciler).changeTunnels},
	{"run northd", running(render.NorthdName, render.NorthdObjects)},
	{"run Open vSwitch on nodes", running(render.OpenVSwitch, render.OpenVSwitchObjects)},
	{"run the controller", running(render.ControllerName, render.ControllerObjects)},
	{"record the default subnets", (*Reconciler).recordSubnets},
	{"run the agents", (*Reconciler).runAgents},
	{"export metrics", (*Reconciler).runMonitoring},
	{"pull the image on nodes", (*Reconciler).pullImage},
	{"replace pods on nodes", (*Reconciler).replacePods},
	{"run the pinger", (*Reconciler).runPinger},
	{"run the speaker", (*Reconciler).runSpeaker},
	{"prune", (*Reconciler).prune},
	{"order authorities", (*Reconciler).orderAuthorities}, // last, because no other phase depends on cert-manager
}

// fieldOwner is the field manager of everything the operator writes.
const fieldOwner = client.FieldOwner("kiln-operator")

// reasonNoDefinition is the reason of a Halt, and of an event of the operator's pod.
const reasonNoDefinition = "ResourceDefinitionMissing"

// staleDelay gives the cache time to catch up.
const staleDelay = 100 * time.Millisecond

// Reconcile runs one pass. It ignores OVNClusters with another name, which the API rejects.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name != v1alpha1.OVNClusterName {
		return ctrl.Result{}, nil
	}
	p, err := r.gather(ctx, req.Name)
	if p == nil || err != nil {
		return ctrl.Result{}, err
	}
	r.checkKubernetes(ctx, p)
	r.databases.NoteAddresses(p.Cluster)
	err = r.run(ctx, p)
	if err == nil && p.removing() {
		return ctrl.Result{}, nil // the OVNCluster is deleted: no status to report
	}
	p.Log(logr.FromContextOrDiscard(ctx), err)
	r.reportNodeTroubles(p)
	statusErr := (&status.Writer{Client: r, Recorder: r.Recorder, Namespace: r.Namespace, FieldOwner: fieldOwner, Versions: r.versions}).Write(ctx, status.Pass{
		Before: p.before, OVNCluster: p.cluster, Report: p.Report, Objects: p.objects,
		Planned: p.planned, Plan: p.plan, Image: p.config.Image, Err: err,
	})
	err = status.Retryable(err)
	if err == nil && apierrors.IsConflict(statusErr) {
		// The pass read a cache older than the last status patch.
		return ctrl.Result{RequeueAfter: staleDelay}, nil
	}
	if err := errors.Join(err, statusErr); err != nil {
		return ctrl.Result{}, err
	}
	if p.Wake().IsZero() {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(p.Wake().Sub(p.Now), time.Second)}, nil
}

func (r *Reconciler) run(ctx context.Context, p *pass) error {
	if p.removing() {
		return removal{r, p}.takeDown(ctx)
	}
	for _, phase := range phases {
		if err := phase.run(r, ctx, p); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return nil
}

// validate checks rules that the API cannot check, and completes the spec.
func (r *Reconciler) validate(ctx context.Context, p *pass) error {
	spec := *p.cluster.Spec.DeepCopy()
	network, lists, err := resolveNetwork(spec.Network)
	if err != nil {
		return &status.Halt{Reason: "InvalidNetwork", Message: err.Error(), Degraded: true}
	}
	spec.Network = network
	p.config = render.Config{Namespace: r.Namespace, Image: spec.Image, Spec: spec}
	if p.config.Image == "" {
		p.config.Image = r.Image
	}
	adviseOnSelectors(&spec, p.Report)
	return r.checkNodes(ctx, p, lists)
}

// requireResources waits until the API serves the network resources without which the controller cannot start.
func (r *Reconciler) requireResources(_ context.Context, _ *pass) error {
	for _, kind := range kubeovnv1.ImplementedKinds {
		_, err := r.RESTMapper().RESTMapping(kubeovnv1.GroupVersion.WithKind(kind.Kind).GroupKind(), kubeovnv1.GroupVersion.Version)
		if meta.IsNoMatchError(err) {
			return &status.Halt{
				Reason:   reasonNoDefinition,
				Message:  fmt.Sprintf("the API does not serve %s of kubeovn.io/v1: apply the manifests in config/crd", kind.Kind),
				Degraded: true,
			}
		}
		if err != nil {
			return fmt.Errorf("look up %s: %w", kind.Kind, err)
		}
	}
	return nil
}

// grantAccess applies the ServiceAccounts, their roles and the disruption budgets.
func (r *Reconciler) grantAccess(ctx context.Context, p *pass) error {
	return p.objects.Apply(ctx, append(render.AccessObjects(p.config), render.DisruptionBudgets(p.config)...)...)
}

// prune deletes objects that earlier passes applied and this pass did not. It finds objects by label and deletes only
// objects that the OVNCluster owns.
func (r *Reconciler) prune(ctx context.Context, p *pass) error {
	kinds := ownedKinds()
	if r.kinds.watchesPolicies {
		kinds = append(kinds, policyKinds()...)
	}
	for _, kind := range kinds {
		if err := p.objects.Prune(ctx, kind, client.MatchingLabels{render.ManagedByLabel: render.ManagedBy}); err != nil {
			return err
		}
	}
	for _, name := range certs.SecretNames() {
		err := p.objects.PruneNamed(ctx, corev1.SchemeGroupVersion.WithKind("Secret"), types.NamespacedName{Namespace: r.Namespace, Name: name})
		if err != nil {
			return err
		}
	}
	return nil
}
