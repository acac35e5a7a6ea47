// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	manifests "github.com/kiln-net/kiln/hack/packaging/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/panics"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
	"github.com/kiln-net/kiln/internal/version"
)

const testNamespace = "kube-system"

const (
	soon  = 2 * time.Minute // usually immediate, but the machine may be busy
	often = 50 * time.Millisecond
	node  = "control-plane-1"
)

// world is a real API server with the manifests of the operator's rights, and the fakes that operators connect to. All
// tests share it, and the operator that the first of them starts.
type world struct {
	admin   client.Client
	config  *rest.Config
	members *fakeMembers
	// operate is the running operator, and stop stops it; nil if none runs.
	operate *Reconciler
	stop    func() error
	// standing is an installation that the next test may use, or nil.
	standing *scenario
	// mounts is a directory for files of Secrets.
	mounts string
	// programs are the versions that pods report.
	programs *fakeVersions
	// repeat enables the operator's retries again.
	repeat func()
	// log is the operator's log.
	log *os.File
	// ahead is the offset of the operator's clock from the real time, in nanoseconds.
	ahead atomic.Int64
	// idleLoad is the value of load while the operator is idle.
	idleLoad float64
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

var theWorld world

func TestMain(m *testing.M) { os.Exit(runSuite(m)) }

func runSuite(m *testing.M) int {
	theWorld.log = logFile()
	log.SetLogger(zap.New(zap.WriteTo(theWorld.log), zap.UseDevMode(true)))
	env, err := apiserver.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Some distributions enable this plugin. It requires the right to update the finalizers of an object's owner.
	env.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	return env.Run(func(config *rest.Config) int { return runTests(m, config) })
}

func runTests(m *testing.M, config *rest.Config) int {
	theWorld.repeat = k8s.OnlyEvents()
	panics.Record()
	SetDefaultEventuallyTimeout(eventually.Capped(soon))
	SetDefaultEventuallyPollingInterval(often)
	if err := theWorld.prepare(context.Background(), config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := eventually.Main(m, eventually.Allowed{
		"TestAnOldAPIServer": {Why: "controller-runtime looks for a kind that is not served every 10 s", Base: 20 * time.Second},
	})
	if err := errors.Join(theWorld.stopOperator(), os.RemoveAll(theWorld.mounts)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return panics.Code(code)
}

func logFile() *os.File {
	f, err := os.CreateTemp("", "kiln-operator-test-*.log")
	if err != nil {
		return os.Stderr
	}
	_ = os.Remove(f.Name())
	if name := os.Getenv("KILN_TEST_LOG"); name != "" {
		if f, err = os.Create(name); err != nil {
			return os.Stderr
		}
	}
	return f
}

// prepare makes the clients and fakes and applies the manifests of the operator's rights.
func (w *world) prepare(ctx context.Context, config *rest.Config) error {
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	w.programs = &fakeVersions{programs: map[uint16]version.Programs{}}
	w.config, w.members = config, &fakeMembers{now: w.now, servers: map[uint16]*httptest.Server{}}
	if w.admin, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if w.mounts, err = os.MkdirTemp("", "kiln-operator-test-"); err != nil {
		return err
	}
	for _, dir := range []string{"rbac", "admission"} {
		objects, err := manifests.Objects(filepath.Join("..", "..", "config", dir), "")
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := w.admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(gitOps)); err != nil {
				return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
	}
	return nil
}

// createFile creates the objects in a file.
func (w *world) createFile(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for decoder := utilyaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); err != nil {
			return nil // end of file
		}
		if len(u.Object) == 0 {
			continue
		}
		if err := w.admin.Create(ctx, u); err != nil {
			return err
		}
	}
}
