// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/internal/k8s"
)

// operator returns the running operator. It starts one if none runs.
func (w *world) operator(t testing.TB) *Reconciler {
	t.Helper()
	if w.operate == nil {
		w.idleLoad = load(t)
		if err := w.startOperator(); err != nil {
			t.Fatalf("start an operator: %v", err)
		}
	}
	return w.operate
}

// startOperator starts an operator without any in-memory state. It runs as its own ServiceAccount, so that the tests cover
// the rights in its manifests.
func (w *world) startOperator() error {
	operator := rest.CopyConfig(w.config)
	operator.QPS = -1
	operator.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + testNamespace + ":kiln-operator",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + testNamespace, "system:authenticated"},
	}
	mgr, err := w.newManager(operator)
	if err != nil {
		return err
	}
	server, err := discovery.NewDiscoveryClientForConfigAndClient(operator, mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	r := &Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("kiln-operator"),
		Namespace: testNamespace, Pod: "operator-0", Image: imageNow, Admin: w.members.client, Versions: w.programs.get, Now: w.now, Server: server,
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return err
	}
	chassis := &certs.ChassisReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Namespace: testNamespace, Now: time.Now}
	if err := chassis.SetupWithManager(mgr); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := mgr.Start(ctx)
		if ctx.Err() == nil {
			panic(fmt.Sprintf("the operator ended: %v", err))
		}
		ended <- err
	}()
	w.operate, w.stop = r, func() error { cancel(); return <-ended }
	return nil
}

// stopOperator stops the operator, if one runs.
func (w *world) stopOperator() error {
	if w.operate == nil {
		return nil
	}
	err := w.stop()
	w.operate, w.stop = nil, nil
	if err != nil {
		return fmt.Errorf("run the operator: %w", err)
	}
	return nil
}

func (w *world) newManager(config *rest.Config) (ctrl.Manager, error) {
	// The operator is the only candidate for the Lease, and on a busy machine it may renew late.
	renewDeadline := 4 * time.Minute
	lock, err := k8s.Identity{Namespace: testNamespace, Pod: "operator-0"}.Lock(config, "kiln-operator", renewDeadline)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: w.admin.Scheme(), Cache: CacheOptions(testNamespace), Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionResourceLockInterface: lock, LeaseDuration: new(5 * time.Minute), RenewDeadline: &renewDeadline,
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)}, // one process runs several operators, one after another
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

// load returns the numbers of queued and running passes, of all controllers that ever ran in this process. Passes that were
// queued when an operator stopped stay in the metric.
func load(t testing.TB) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if name := family.GetName(); name != "workqueue_depth" && name != "controller_runtime_active_workers" {
			continue
		}
		for _, metric := range family.GetMetric() {
			sum += metric.GetGauge().GetValue()
		}
	}
	return sum
}
