// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"context"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/trim"
)

// Process is one run of a controller.
type Process struct {
	*reconciler.Shared

	Manager ctrl.Manager

	world     *World
	proxy     *nbtest.Proxy
	before    int
	writes    writes
	stop      context.CancelFunc
	stopped   chan struct{}
	interrupt sync.Once
}

// Steps are the parts of a Process that the package under test defines.
type Steps struct {
	// Setup registers its reconcilers.
	Setup func(ctx context.Context, p *Process) error
	// Restore runs once the cache has synced and before the gate opens.
	Restore func(ctx context.Context, p *Process) error
	// Cache are options for the process's cache.
	Cache cache.Options
}

// Start starts a process that runs until Stop, or until the test ends. At the end of the test, the rows of the last process are compared with
// the rows of a fresh one (DiffersFromFresh).
func (w *World) Start(steps Steps) *Process {
	w.Helper()
	p := w.start(steps)
	w.processes = append(w.processes, p)
	w.Cleanup(func() { w.compare(p, steps) })
	return p
}

// start starts a process.
func (w *World) start(steps Steps) *Process {
	w.Helper()
	ctx, cancel := context.WithCancel(ctrl.LoggerInto(context.Background(), w.log))
	p := &Process{world: w, stop: cancel, stopped: make(chan struct{}), proxy: w.Database.Proxy()}
	session, err := ovsdbclient.Northbound(ctx, ovsdbclient.Options{Endpoints: []string{p.proxy.Endpoint()}, Log: w.log})
	w.Must(err)
	engine, err := northbound.New(session, w.log)
	w.Must(err)
	p.Manager, err = ctrl.NewManager(p.writes.counted(account), ctrl.Options{
		Scheme:     scheme,
		Logger:     w.log,
		Cache:      cacheOf(steps.Cache),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	w.Must(err)
	p.Shared, err = reconciler.NewShared(ctx, p.Manager, engine, false)
	w.Must(err)
	w.Must(p.Manager.Add(p.Engine))
	w.Must(steps.Setup(ctx, p))
	go func() {
		defer close(p.stopped)
		defer session.Close()
		if err := p.Manager.Start(ctx); err != nil {
			w.Errorf("manager: %v", err)
		}
	}()
	w.Cleanup(p.Stop)
	if !p.Manager.GetCache().WaitForCacheSync(ctx) {
		w.Fatal("the cache does not sync")
	}
	w.Must(p.Engine.Lead(ctx))
	if steps.Restore != nil {
		w.Must(steps.Restore(ctx, p))
	}
	p.connect(ctx)
	p.before = p.proxy.Transactions()
	p.Gate.Open()
	return p
}

// cacheOf returns options with the transformations of the product's cache, so that a controller that reads a field that the cache does not have fails here.
func cacheOf(options cache.Options) cache.Options {
	product := trim.Cache()
	for kind, of := range options.ByObject {
		for trimmed, its := range product.ByObject {
			if reflect.TypeOf(kind) == reflect.TypeOf(trimmed) {
				delete(product.ByObject, trimmed)
				of.Transform = after(its.Transform, of.Transform)
			}
		}
		product.ByObject[kind] = of
	}
	return product
}

// after returns a transformation by first and then by second, which may be nil.
func after(first, second toolscache.TransformFunc) toolscache.TransformFunc {
	if second == nil {
		return first
	}
	return func(o any) (any, error) {
		o, err := first(o)
		if err != nil {
			return nil, err
		}
		return second(o)
	}
}

// Restart stops the previous process, if any, and starts a new one.
func (w *World) Restart(before *Process, steps Steps) *Process {
	w.Helper()
	if before != nil {
		before.Stop()
	}
	return w.Start(steps)
}

// Reconciler is a reconciler that a process can run.
type Reconciler interface {
	SetupWithManager(context.Context, ctrl.Manager) error
}

// Run registers reconcilers.
func (p *Process) Run(ctx context.Context, reconcilers ...Reconciler) error {
	for _, r := range reconcilers {
		if err := r.SetupWithManager(ctx, p.Manager); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops the process and waits for its end. It is idempotent.
func (p *Process) Stop() {
	p.interrupt.Do(func() {
		p.stop()
		<-p.stopped
	})
}

// Transactions returns the number of transactions that the process has sent to the northbound database since its gate opened.
func (p *Process) Transactions() int { return p.proxy.Transactions() - p.before }

// Northbound returns the proxy between the process and the northbound database.
func (p *Process) Northbound() *nbtest.Proxy { return p.proxy }

// Writes returns the number of requests with this method, and with this text in their path, that the process has sent to the API server.
func (p *Process) Writes(method, path string) int { return p.writes.count(method, path) }

// Subnet creates a validated subnet. Its gateway is the first address of each CIDR.
func (w *World) Subnet(name string, change func(*kubeovnv1.SubnetSpec), running ...*Process) *kubeovnv1.Subnet {
	w.Helper()
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	change(&s.Spec)
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	w.Must(err)
	var gateways []string
	for _, cidr := range cidrs {
		gateways = append(gateways, cidr.Addr().Next().String())
	}
	s.Spec.Gateway = strings.Join(gateways, ",")
	w.Create(s)
	w.subnets = append(w.subnets, s)
	w.InForce(s, running...)
	return s
}

// Joined creates the IP object of a node's port, as the controller of nodes does: port has the addresses of the port, own has the addresses of the node.
func (w *World) Joined(node, port string, own ...string) *kubeovnv1.IP {
	w.Helper()
	ip := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.NodePortName(node), Annotations: map[string]string{
			kubeovnv1.AnnotationNodeAddresses.Key(): strings.Join(own, ","), kubeovnv1.AnnotationClaimedAddresses.Key(): strings.Join(own, ","),
		}},
		Spec: kubeovnv1.IPSpec{Subnet: kubeovnv1.JoinSubnet, NodeName: node, PodName: node, IPAddress: port},
	}
	w.Create(ip)
	return ip
}

// InForce applies a subnet's spec in the running processes, and sets the subnet's condition Validated and validatedSpec.
func (w *World) InForce(s *kubeovnv1.Subnet, running ...*Process) {
	w.Helper()
	for _, p := range running {
		p.connect(w.Context())
	}
	condition := metav1.Condition{
		Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionTrue, Reason: kubeovnv1.ReasonValid, ObservedGeneration: s.Generation,
	}
	apimeta.SetStatusCondition(&s.Status.Conditions, condition)
	s.Status.ValidatedSpec = s.Spec.DeepCopy()
	w.Must(w.Client.Status().Update(w.Context(), s))
}

// Refuse sets the condition Validated of a subnet for its current spec to False, as the controller of subnets does. validatedSpec stays.
func (w *World) Refuse(s *kubeovnv1.Subnet, message string) {
	w.Helper()
	apimeta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
		Type: kubeovnv1.ConditionValidated, Status: metav1.ConditionFalse, Reason: kubeovnv1.ReasonInvalid, Message: message,
		ObservedGeneration: s.Generation,
	})
	w.Must(w.Client.Status().Update(w.Context(), s))
}

// connect commits the rows of VPCs, subnets and nodes, and sets the subnets in the allocator.
func (p *Process) connect(ctx context.Context) {
	w := p.world
	w.Helper()
	vpcs := map[string]bool{kubeovnv1.DefaultVpc: true}
	for _, s := range w.subnets {
		vpcs[vpcOf(s)] = true
	}
	for vpc := range vpcs {
		w.Must(p.Engine.Apply(ctx, translate.ProtectionOwner(vpc), translate.Protection(vpc, v1alpha1.ControlPlaneProtection{})))
		w.Must(p.Engine.Apply(ctx, translate.VpcOwner(vpc), translate.Vpc(translate.VpcInputs{Name: vpc})))
	}
	for _, s := range w.subnets {
		cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
		w.Must(err)
		gateways, err := ipfamily.ParseAddrs(s.Spec.Gateway)
		w.Must(err)
		exclude, err := ipfamily.ParseRanges(s.Spec.ExcludeIPs)
		w.Must(err)
		w.Must(p.Allocator.SetSubnet(s.Name, ipam.Subnet{CIDRs: cidrs, Gateways: gateways, Exclude: exclude}))
		w.Must(p.Engine.Apply(ctx, translate.SubnetOwner(s.Name), translate.Subnet(translate.SubnetInputs{
			Name: s.Name, Vpc: vpcOf(s), CIDRs: cidrs, Gateways: gateways, Services: true, DHCP: s.Spec.EnableDHCP,
		})))
	}
	p.connectNodes(ctx)
}

func (p *Process) connectNodes(ctx context.Context) {
	for i, node := range p.world.Nodes {
		in := translate.NodeInputs{
			Name: node, Vpc: kubeovnv1.DefaultVpc, Switch: kubeovnv1.JoinSubnet, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)},
		}
		rows := translate.Node(in)[1:] // without the port: this world has no join switch
		p.world.Must(p.Engine.Apply(ctx, translate.NodeOwner(node), rows))
	}
}

func vpcOf(s *kubeovnv1.Subnet) string {
	if s.Spec.Vpc == "" {
		return kubeovnv1.DefaultVpc
	}
	return s.Spec.Vpc
}

// writes counts requests to the API server.
type writes struct {
	mu   sync.Mutex
	sent map[string]int
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *writes) counted(to *rest.Config) *rest.Config {
	out := rest.CopyConfig(to)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			c.add(r.Method + " " + r.URL.Path)
			return next.RoundTrip(r)
		})
	})
	return out
}

func (c *writes) add(request string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent == nil {
		c.sent = map[string]int{}
	}
	c.sent[request]++
}

func (c *writes) count(method, path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	for request, n := range c.sent {
		if strings.HasPrefix(request, method+" ") && strings.Contains(request, path) {
			total += n
		}
	}
	return total
}
