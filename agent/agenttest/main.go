// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agenttest simulates a node for the tests of the agent's packages. The node has real network namespaces, a real Open vSwitch in its
// userspace datapath, an API server, and the agent as a process of its own. The test plays ovn-controller and the controller.
package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/agent/cniserver"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/ovncluster"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/internal/testing/prepared"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

// The test program executes itself twice: in new namespaces, which simulate the node, and from there as the agent, so that tests can kill
// the agent's process.
const (
	envAgent  = "KILN_TEST_AGENT"
	envConfig = "KILN_TEST_KUBECONFIG"
	// envWithoutIPv6 simulates a kernel without IPv6 for the agent.
	envWithoutIPv6 = "KILN_TEST_WITHOUT_IPV6"
	// envDirectory is the directory for files of the tests; envDirectory/plugins has the CNI plugins.
	envDirectory = "KILN_TEST_DIRECTORY"
)

var (
	server     *apiserver.Server
	config     *rest.Config
	kubeconfig string // a file, for the agent
	token      string // with which the agent authenticates
)

// DatabaseLoss is the reason why waits of tests in which the agent loses ovsdb-server take long: its requests time out after 5 seconds, and it
// reconnects after another 5.
const DatabaseLoss = "the readiness check of a dead ovsdb-server takes 5 s"

// Main is the TestMain of a package that uses NewNode. Tests in slow may wait longer than other tests.
func Main(m *testing.M, slow ...eventually.Allowed) {
	var err error
	var code int
	switch {
	case os.Getenv(envAgent) != "":
		err, code = runAgent(), 0
	case nodetest.Inside():
		code, err = runInside(m, slow)
	default:
		code, err = enter()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// enter builds the plugins and runs the tests in new namespaces. It builds first, because the namespaces have no network to download
// modules.
func enter() (int, error) {
	directory, err := os.MkdirTemp("", "kiln-agent")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(directory)
	if err := buildPlugins(filepath.Join(directory, "plugins")); err != nil {
		return 1, err
	}
	return nodetest.Enter(envDirectory + "=" + directory)
}

func runInside(m *testing.M, slow []eventually.Allowed) (int, error) {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	if err := nodetest.Mount(); err != nil {
		return 1, err
	}
	code := golden.Check(eventually.Main(m, slow...))
	if server != nil {
		if err := server.Stop(); err != nil {
			return 1, fmt.Errorf("stop the API server: %w", err)
		}
	}
	return code, nil
}

// setUp creates what all nodes of a test program share, when the first test needs it.
var setUp = sync.OnceValue(func() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	if err := connectNode(); err != nil {
		return fmt.Errorf("connect the node: %w", err)
	}
	directory := os.Getenv(envDirectory)
	programs, err := os.MkdirTemp(directory, "programs")
	if err != nil {
		return err
	}
	if err := prepared.UseImagePrograms(programs); err != nil {
		return err
	}
	return startAPI(filepath.Join(directory, "kubeconfig"))
})

func buildPlugins(directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", directory+string(filepath.Separator),
		"github.com/kiln-net/kiln/cmd/kube-ovn", "github.com/containernetworking/plugins/plugins/meta/portmap")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the CNI plugins: %w\n%s", err, out)
	}
	return nil
}

func startAPI(kubeconfigFile string) error {
	started, err := apiserver.New("subnets", "vpcs", "ips", "provider-networks", "egress-addresses", "ovnclusters")
	if err != nil {
		return err
	}
	if config, err = started.Start(); err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	server = started
	content, issued, err := server.TokenConfig(context.Background())
	if err != nil {
		return err
	}
	token, kubeconfig = issued, kubeconfigFile
	return os.WriteFile(kubeconfig, content, 0o600)
}

// runAgent runs the agent's process.
func runAgent() error {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	if os.Getenv(envWithoutIPv6) != "" {
		if err := withoutIPv6(); err != nil {
			return err
		}
	}
	k8s.OnlyEvents()
	var o agent.Options
	if err := json.Unmarshal([]byte(os.Getenv(envAgent)), &o); err != nil {
		return fmt.Errorf("parse the agent's options: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(envConfig))
	if err != nil {
		return fmt.Errorf("read the agent's kubeconfig: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o.Mirror = &cniserver.MirrorSetting{}
	if _, err := ovncluster.Watch(ctx, config, func(cluster *v1alpha1.OVNCluster) { o.Mirror.Set(cluster.Spec.Agent.Mirror) }); err != nil {
		return err
	}
	return agent.Run(ctrl.LoggerInto(ctx, ctrl.Log), config, o)
}
