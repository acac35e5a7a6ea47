// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/internal/testing/prepared"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

const (
	// northboundPort is the port that the controller expects, with TLS. Other systems may use the plain port.
	northboundPort      = "6641"
	plainNorthboundPort = "6643"
	plainSouthboundPort = "6642"
	// northboundName is the name in the server's certificate.
	northboundName = "ovn-nb"
	northd         = "ovn-northd"
	// namespace of the pods.
	namespace = "bench"
)

// world is the environment of the system under test: an API server with its etcd, both OVN databases and ovn-northd.
type world struct {
	dir, cache string
	// address of the databases and of the system under test, on the loopback interface.
	address string
	layout  layout
	api     *apiserver.Server
	// clients has the rights of a cluster administrator, writer the account of the system under test, and creator the name of the controller of ReplicaSets, which creates most pods: the
	// admission policies that only inform users skip it.
	clients, writer, creator *kubernetes.Clientset
	running                  map[string]*process
	pids                     map[string]int
	commits                  map[string]*commitLog
	// lost is called when a process ends on its own.
	lost func(error)
}

// newWorld starts everything except the system under test. The caller must call close, also after an error.
func newWorld(ctx context.Context, o options, lost func(error)) (*world, error) {
	pid := os.Getpid()
	w := &world{
		address: fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255), // unique per bench process
		layout:  o.layout, lost: lost,
		running: map[string]*process{}, pids: map[string]int{"bench": pid}, commits: map[string]*commitLog{},
	}
	var err error
	if w.cache, err = cacheDir(); err != nil {
		return w, err
	}
	if w.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return w, fmt.Errorf("make a directory: %w", err)
	}
	startAPI := func() error { return w.startAPI(o.crds) }
	grantAccess := func() error { return w.grantAccess(ctx, o) }
	for _, step := range []func() error{startAPI, grantAccess, w.writeCertificates, w.startDatabases} {
		if err := step(); err != nil {
			return w, err
		}
	}
	return w, w.createNodes(ctx, o.nodes)
}

// cacheDir returns the directory in which `make prepare` stores the programs.
func cacheDir() (string, error) {
	cache, err := prepared.Dir()
	if err != nil {
		return "", err
	}
	for _, program := range []string{"bin/etcd", "bin/kube-apiserver", prepared.Root + "/usr/sbin/ovsdb-server", prepared.Root + "/usr/bin/ovn-northd"} {
		if _, err := os.Stat(filepath.Join(cache, program)); err != nil {
			return "", fmt.Errorf("no %s in %s, run: make prepare", program, cache)
		}
	}
	return cache, nil
}

func (w *world) close() error {
	for name, p := range w.running {
		if name == northd {
			_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may be paused
		}
		p.kill()
	}
	var err error
	if w.api != nil {
		err = w.api.Stop()
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// startAPI starts etcd and the API server. etcd does not sync writes to disk, because that would measure the disk.
func (w *world) startAPI(crds string) error {
	etcd, err := w.serverScript("etcd")
	if err != nil {
		return err
	}
	server, err := w.serverScript("kube-apiserver")
	if err != nil {
		return err
	}
	w.api = &apiserver.Server{Environment: envtest.Environment{
		CRDDirectoryPaths:        []string{crds},
		ErrorIfCRDPathMissing:    true,
		CRDInstallOptions:        envtest.CRDInstallOptions{MaxTime: time.Minute},
		ControlPlaneStartTimeout: time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}}
	w.api.ControlPlane.Etcd = &envtest.Etcd{Path: etcd}
	w.api.ControlPlane.Etcd.Configure().Set("unsafe-no-fsync", "true")
	w.api.ControlPlane.APIServer = &envtest.APIServer{Path: server}
	w.api.ControlPlane.APIServer.Configure().Set("service-cluster-ip-range", "10.96.0.0/12")
	config, err := w.api.Start()
	if err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if w.pids[name], err = childNamed(name); err != nil {
			return err
		}
	}
	if w.clients, err = clientsOf(config); err != nil {
		return err
	}
	creator, err := w.api.AddUser(envtest.User{
		Name: "system:serviceaccount:kube-system:replicaset-controller", Groups: []string{"system:masters", "system:serviceaccounts:kube-system"},
	}, nil)
	if err != nil {
		return fmt.Errorf("authenticate the creator of pods: %w", err)
	}
	w.creator, err = clientsOf(creator.Config())
	return err
}

// clientsOf returns clients that use protobuf and have no client-side rate limit.
func clientsOf(config *rest.Config) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return clients, nil
}

// serverScript writes a script that envtest runs: the program on the servers' CPU, killed when the bench ends.
func (w *world) serverScript(name string) (string, error) {
	setpriv, err := program("setpriv")
	if err != nil {
		return "", err
	}
	path := filepath.Join(w.dir, name)
	command := append([]string{"exec", setpriv, "--pdeathsig", "KILL"}, w.layout.server(filepath.Join(w.cache, "bin", name))...)
	content := "#!/bin/sh\n" + strings.Join(command, " ") + ` "$@"` + "\n"
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
		return "", fmt.Errorf("write the script of %s: %w", name, err)
	}
	return path, nil
}

func (w *world) kubeconfig() string { return filepath.Join(w.dir, "kubeconfig") }

// writeCertificates writes the server's files for ovsdb-server and the client's files for the controller.
func (w *world) writeCertificates() error {
	now := time.Now()
	servers, err := pki.NewAuthority("nb-server", now)
	if err != nil {
		return fmt.Errorf("make the servers' authority: %w", err)
	}
	clients, err := pki.NewAuthority("nb-client", now)
	if err != nil {
		return fmt.Errorf("make the clients' authority: %w", err)
	}
	server, err := servers.Issue(pki.Profile{CommonName: northboundName, DNSNames: []string{northboundName}, Server: true}, now)
	if err != nil {
		return fmt.Errorf("issue the server's certificate: %w", err)
	}
	client, err := clients.Issue(pki.Profile{CommonName: "kube-ovn-controller"}, now)
	if err != nil {
		return fmt.Errorf("issue the controller's certificate: %w", err)
	}
	return errors.Join(
		writeFiles(w.serverTLS(), server.Certificate, server.Key, clients.Bundle()),
		writeFiles(w.clientTLS(), client.Certificate, client.Key, servers.Bundle()),
	)
}

func (w *world) serverTLS() string { return filepath.Join(w.dir, "server-tls") }
func (w *world) clientTLS() string { return filepath.Join(w.dir, "client-tls") }

func writeFiles(dir string, certificate, key, authorities []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a directory of certificates: %w", err)
	}
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": authorities} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return fmt.Errorf("write a certificate: %w", err)
		}
	}
	return nil
}

// start runs a program until close.
func (w *world) start(name string, cmd *exec.Cmd) (*process, error) {
	p, err := start(w.dir, name, cmd, w.lost)
	if err == nil {
		w.running[name] = p
	}
	return p, err
}

// createNodes creates nodes without a kubelet, and the namespace of the pods.
func (w *world) createNodes(ctx context.Context, nodes int) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := w.clients.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	for i := range nodes {
		if err := w.createNode(ctx, nodeName(i), fmt.Sprintf("192.168.%d.%d", i/250, 1+i%250)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) createNode(ctx context.Context, name, address string) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
	if _, err := w.clients.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// cpu returns the CPU time of each process so far.
func (w *world) cpu() (map[string]time.Duration, error) {
	spent := map[string]time.Duration{}
	for name, pid := range w.pids {
		t, err := cpuTime(pid)
		if err != nil {
			return nil, err
		}
		spent[name] = t
	}
	return spent, nil
}

// within retries until try succeeds. After the limit it returns try's last error.
func within(limit time.Duration, try func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

// isAbsent reports whether the API server lacks the kind.
func isAbsent(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
