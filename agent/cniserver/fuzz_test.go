// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	cni "github.com/containernetworking/cni/pkg/types"

	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/cni/wire"
)

// FuzzRequest sends a request body to the socket's handler, with an operation that reads the whole request and the pod's routes
// annotation but uses neither Open vSwitch nor the kernel. The handler must not panic. The plugin must be able to read the response: a
// result, or an error with a CNI error code. Routes of the result have a gateway of the family of their destination.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{}`), "")
	f.Add([]byte(`{"network":"kiln","provider":"ovn","pod_name":"a","pod_namespace":"b","pod_uid":"u","container_id":"c","net_ns":"/n",`+
		`"if_name":"eth0","routes":[{"dst":"192.0.2.0/24","gw":"10.16.0.9"}],"dns":{"nameservers":["10.96.0.10"]}}`),
		`[{"dst":"198.51.100.0/24","gw":"10.16.0.9"}]`)
	f.Add([]byte(`{"provider":"ovn","pod_name":"a","pod_namespace":"b","container_id":"c","net_ns":"/n","if_name":"eth0","prev_result":{`+
		`"cniVersion":"1.1.0","interfaces":[{"name":"h"},{"name":"eth0","mac":"02:00:00:00:00:05","mtu":1400,"sandbox":"/n"}],`+
		`"ips":[{"interface":1,"address":"10.16.0.5/16","gateway":"10.16.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.16.0.1"}]}}`), "")
	f.Add([]byte(`{"provider":"ovn","pod_name":"a","pod_namespace":"b","container_id":"c","net_ns":"/n","if_name":"eth0","routes":[null]}`), "")
	f.Add([]byte(`{"provider":"ovn","pod_name":"a","pod_namespace":"b","container_id":"c","net_ns":"/n","if_name":"eth0","prev_result":{`+
		`"cniVersion":"1.1.0","interfaces":[null,{"name":"eth0","sandbox":"/n","mac":"02:00:00:00:00:05"}],"ips":[null],"routes":[null]}}`), "")
	f.Fuzz(func(t *testing.T, body []byte, routes string) {
		recorder := httptest.NewRecorder()
		operation := func(_ context.Context, r wire.Request) (*wire.Response, error) { return readAll(t, r, routes) }
		(&Server{}).serve(wire.PathAdd, operation).ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, wire.PathAdd, strings.NewReader(string(body))))
		var response wire.Response
		if err := json.Unmarshal(recorder.Body.Bytes(), &response); err != nil {
			t.Fatalf("response %s: %v", recorder.Body, err)
		}
		if failed := recorder.Code != http.StatusOK; failed != (response.Error != nil) || failed == (response.Result != nil) {
			t.Errorf("status %d has response %s", recorder.Code, recorder.Body)
		}
	})
}

// readAll is the part of ADD and CHECK that depends on the request and the pod only.
func readAll(t *testing.T, r wire.Request, annotation string) (*wire.Response, error) {
	if err := required(r); err != nil {
		return nil, err
	}
	pod := PodMetadata()
	pod.Annotations = map[string]string{v1.AnnotationRoutes.For(r.Provider): annotation}
	network := dual()
	iface := sandbox.Interface{NetNS: r.NetNS, Name: r.IfName, MAC: network.MAC, HostName: sandbox.HostName(r.ContainerID, r.IfName, 0)}
	var err error
	if iface.Addresses, err = prefixes(network); err != nil {
		return nil, err
	}
	if iface.Routes, err = routes(r, pod, network); err != nil {
		return nil, cni.NewError(cni.ErrInvalidNetworkConfig, err.Error(), "")
	}
	for _, route := range iface.Routes {
		if route.To.Addr().Is4() != route.Via.Is4() || route.To.Addr().Is4In6() || route.To != route.To.Masked() {
			t.Errorf("route to %s via %s", route.To, route.Via)
		}
	}
	if r.PrevResult != nil {
		if _, err := interfaceIn(r.PrevResult, r.NetNS, r.IfName); err != nil {
			return nil, err
		}
	}
	return &wire.Response{Result: resultOf(iface, network, r.DNS)}, nil
}
