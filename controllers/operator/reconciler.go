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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/version"
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

	versions *versions

	applied map[objectKey]appliedState
	// addressless are nodes without an InternalIP, with the time since when this process has seen that.
	addressless map[string]time.Time
	// reportedTroubles are the last events of nodes, by node and reason.
	reportedTroubles map[[2]string]reportedTrouble
	// converted records, by database flag, the state for which the schema was last verified: database, cluster ID and
	// template.
	converted map[string]string
	// replaced are pods that were deleted and may still be in the cache.
	replaced map[types.UID]bool

	// nodesOfChassis are the nodes and pods of nodes for which chassis of deleted nodes were last removed, with the cluster ID.
	nodesOfChassis string

	// cache and controller are set by SetupWithManager.
	cache      cache.Cache
	controller controller.Controller
	secrets    *certs.Secrets
	// ordersCancelled is set after all unused Certificates have been deleted.
	ordersCancelled bool
	// newKubernetes is set once the API server is new enough.
	newKubernetes bool
	// policiesWatched is set when changes of admission policies trigger passes.
	policiesWatched bool
	// watched has the optional kinds, of cert-manager and of the Prometheus operator, whose changes trigger passes.
	watched map[schema.GroupVersionKind]bool
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
	{"place the databases", (*Reconciler).placeDatabases},
	{"choose the data directory", (*Reconciler).chooseDirectory},
	{"offer tunnels", (*Reconciler).offerTunnels},
	{"plan replacements", (*Reconciler).planUpgrade},
	{"stop what other versions do not have", (*Reconciler).stopUnsupported},
	{"issue certificates", (*Reconciler).issueCertificates},
	{"grant access", (*Reconciler).grantAccess},
	{"apply admission policies", (*Reconciler).protect},
	{"keep backups on a claim", (*Reconciler).runBackups},
	{"run the northbound database", (*Reconciler).runNorthbound},
	{"run the southbound database", (*Reconciler).runSouthbound},
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
	r.noteAddresses(p)
	err = r.run(ctx, p)
	if err == nil && p.removing() {
		return ctrl.Result{}, nil // the OVNCluster is deleted: no status to report
	}
	p.logWaits(logr.FromContextOrDiscard(ctx), err)
	statusErr := r.report(ctx, p, err)
	err = retryable(err)
	if err == nil && apierrors.IsConflict(statusErr) {
		// The pass read a cache older than the last status patch.
		return ctrl.Result{RequeueAfter: staleDelay}, nil
	}
	if err := errors.Join(err, statusErr); err != nil {
		return ctrl.Result{}, err
	}
	if p.wake.IsZero() {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(p.wake.Sub(p.now), time.Second)}, nil
}

func (r *Reconciler) run(ctx context.Context, p *pass) error {
	if p.removing() {
		return r.takeDown(ctx, p)
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
		return &halt{reason: "InvalidNetwork", message: err.Error(), degraded: true}
	}
	spec.Network = network
	p.config = render.Config{Namespace: r.Namespace, Image: spec.Image, Spec: spec}
	if p.config.Image == "" {
		p.config.Image = r.Image
	}
	p.adviseOnSelectors()
	return r.checkNodes(ctx, p, lists)
}

// requireResources waits until the API serves the network resources without which the controller cannot start.
func (r *Reconciler) requireResources(_ context.Context, _ *pass) error {
	for _, kind := range kubeovnv1.ImplementedKinds {
		_, err := r.RESTMapper().RESTMapping(kubeovnv1.GroupVersion.WithKind(kind.Kind).GroupKind(), kubeovnv1.GroupVersion.Version)
		if meta.IsNoMatchError(err) {
			return &halt{
				reason:   reasonNoDefinition,
				message:  fmt.Sprintf("the API does not serve %s of kubeovn.io/v1: apply the manifests in config/crd", kind.Kind),
				degraded: true,
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
	p.config.PatchPods = r.otherVersions(p)
	return r.apply(ctx, p, append(render.AccessObjects(p.config), render.DisruptionBudgets(p.config)...))
}
