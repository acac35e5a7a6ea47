// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/kiln-net/kiln/cni/wire"
)

// agent is a stub of the node's agent. It records the last call, and answers each with a result.
type agent struct {
	socket  string
	path    string
	request wire.Request
}

func startAgent(t *testing.T) *agent {
	t.Helper()
	a := &agent{socket: filepath.Join(t.TempDir(), "s")}
	listener, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.path, a.request = r.URL.Path, wire.Request{}
		if err := json.NewDecoder(r.Body).Decode(&a.request); err != nil {
			t.Error(err)
		}
		_, _ = w.Write([]byte(`{"result":{"cniVersion":"1.1.0"}}`))
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return a
}

// discardResults makes ADD print its result nowhere, until the test ends.
func discardResults(t *testing.T) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = null
	t.Cleanup(func() { os.Stdout = before; null.Close() })
}

// TestOperationsIdentifyTheirContainer: the agent finds the pod and the container of an operation by these fields only. The UID
// distinguishes the pod from an earlier pod of the same name, whose result the agent's cache may still have.
func TestOperationsIdentifyTheirContainer(t *testing.T) {
	a := startAgent(t)
	discardResults(t)
	const valid = `,"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]`
	for name, op := range map[string]struct {
		run    func(*skel.CmdArgs) error
		path   string
		extra  string
		change func(*wire.Request)
	}{
		"ADD":   {run: add, path: wire.PathAdd},
		"DEL":   {run: del, path: wire.PathDel},
		"CHECK": {run: check, path: wire.PathCheck, extra: `,"prevResult":{"cniVersion":"1.1.0"}`},
		"GC": {run: gc, path: wire.PathGC, extra: valid, change: func(r *wire.Request) {
			r.ValidAttachments = []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}}
		}},
	} {
		args := &skel.CmdArgs{
			ContainerID: "container", Netns: "/netns", IfName: "eth1",
			Args:      "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=uid;K8S_POD_INFRA_CONTAINER_ID=other",
			StdinData: []byte(`{"cniVersion":"1.1.0","name":"net","type":"kube-ovn","provider":"p","server_socket":"` + a.socket + `"` + op.extra + `}`),
		}
		if err := op.run(args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, want := a.request, wire.Request{
			Network: "net", Provider: "p", PodName: "web", PodNamespace: "shop", PodUID: "uid", ContainerID: "container", NetNS: "/netns", IfName: "eth1",
		}
		if op.change != nil {
			op.change(&want)
		}
		got.Limit, got.PrevResult = 0, nil
		if a.path != op.path || !reflect.DeepEqual(got, want) {
			t.Errorf("%s calls %s with\n%+v, want %s with\n%+v", name, a.path, got, op.path, want)
		}
		if sent := a.request.PrevResult != nil; sent != (name == "CHECK") {
			t.Errorf("%s sends the previous result: %v", name, sent)
		}
	}
}

// TestAnADDEndsBeforeTheKubeletGivesUp: the kubelet ends the creation of a sandbox after two minutes (runtimeRequestTimeout). An
// error that comes later, and names the missing prerequisite, is lost. The agent has nine tenths of the plugin's time.
func TestAnADDEndsBeforeTheKubeletGivesUp(t *testing.T) {
	a := startAgent(t)
	discardResults(t)
	if err := add(&skel.CmdArgs{StdinData: []byte(`{"cniVersion":"1.1.0","name":"net","server_socket":"` + a.socket + `"}`)}); err != nil {
		t.Fatal(err)
	}
	limit := time.Duration(a.request.Limit) * time.Millisecond
	if most := 2 * time.Minute * 9 / 10; limit <= 0 || limit >= most {
		t.Errorf("the agent has %s for an ADD, want less than %s", limit, most)
	}
}

func TestAGCWithoutAListRemovesNothing(t *testing.T) {
	a := startAgent(t)
	err := gc(&skel.CmdArgs{StdinData: []byte(`{"cniVersion":"1.1.0","name":"net","server_socket":"` + a.socket + `"}`)})
	if err == nil || !strings.Contains(err.Error(), "cni.dev/valid-attachments") || a.path != "" {
		t.Errorf("the plugin returns %v after a call of %q", err, a.path)
	}
}

func TestWithoutAnAgentOnlyDELSucceeds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	args := &skel.CmdArgs{StdinData: []byte(`{"cniVersion":"1.1.0","name":"net","server_socket":"` + socket + `",` +
		`"prevResult":{"cniVersion":"1.1.0"},"cni.dev/valid-attachments":[]}`)}
	if err := del(args); err != nil {
		t.Errorf("a pod cannot be stopped: %v", err)
	}
	for name, run := range map[string]func(*skel.CmdArgs) error{"CHECK": check, "GC": gc, "STATUS": status} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), "kube-ovn-cni") {
			t.Errorf("%s without an agent: %v", name, err)
		}
	}
}
