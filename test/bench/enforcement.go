// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// The pods of the probes. Policies have probe-server-0 as their subject and probe-client as a peer.
const (
	probeClient = "probe-client"
	probeServer = "probe-server-"
	// labelMember is the label by which a policy selects the client as a peer.
	labelMember = "member"
)

// enforcement is the environment of the changes whose enforcement is measured.
type enforcement struct {
	bench   *bench
	chassis *chassis
	prober  prober
	client  station
	servers [2]station
	// serverPort is the UUID of the first server's logical switch port.
	serverPort string
	// router is the router's port in the subnet of the pods, and service the address of the Service.
	router  net.HardwareAddr
	service netip.Addr
	slice   *discoveryv1.EndpointSlice
	nb      *jsonrpc.Conn
	// acls, peers and balancers report changes in NB; the others are their results in SB.
	acls, peers, balancers, sbFlows, sbPeers, sbBalancers *mentions
	// port is the TCP port of the last policy, or probe. Each policy has other ports, so that they identify its rows and flows.
	port int32
}

// newEnforcement creates the pods of the probes, their Service and their chassis.
func (b *bench) newEnforcement(ctx context.Context) (*enforcement, error) {
	e := &enforcement{bench: b, port: 20000}
	var err error
	if e.nb, err = jsonrpc.Dial(ctx, b.world.socket("nb")); err != nil {
		return nil, fmt.Errorf("dial the northbound database: %w", err)
	}
	for _, step := range []func(context.Context) error{e.watch, e.createPods, e.createService, e.start} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *enforcement) watch(ctx context.Context) error {
	for _, column := range []struct {
		to                        **mentions
		socket, db, table, column string
	}{
		{&e.acls, "nb", northbound, "ACL", "match"}, {&e.sbFlows, "sb", southbound, "Logical_Flow", "match"},
		{&e.peers, "nb", northbound, "Address_Set", "addresses"}, {&e.sbPeers, "sb", southbound, "Address_Set", "addresses"},
		{&e.balancers, "nb", northbound, "Load_Balancer", "vips"}, {&e.sbBalancers, "sb", southbound, "Load_Balancer", "vips"},
	} {
		var err error
		if *column.to, err = e.bench.world.mentionIn(ctx, column.socket, column.db, column.table, column.column); err != nil {
			return err
		}
	}
	return nil
}

// createPods creates a node with the pods of the probes and reads their addresses.
func (e *enforcement) createPods(ctx context.Context) error {
	w := e.bench.world
	if err := w.createNode(ctx, chassisName, "192.168.255.1"); err != nil {
		return err
	}
	names := []string{probeClient, probeServer + "0", probeServer + "1"}
	for _, name := range names {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"probe": name}},
			Spec:       corev1.PodSpec{NodeName: chassisName, Containers: []corev1.Container{{Name: "main", Image: "bench"}}},
		}
		if _, err := w.clients.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", name, err)
		}
	}
	if err := e.bench.loader.await(ctx, names); err != nil {
		return err
	}
	return e.bench.ports.awaitNames(ctx, portNames(names), true)
}

func (e *enforcement) createService(ctx context.Context) error {
	w := e.bench.world
	var err error
	if e.slice, err = e.bench.createService(ctx, "probe", 0, 1); err != nil {
		return err
	}
	service, err := w.clients.CoreV1().Services(namespace).Get(ctx, "probe", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the Service of the probes: %w", err)
	}
	if e.service, err = netip.ParseAddr(service.Spec.ClusterIP); err != nil {
		return fmt.Errorf("read the address of the Service: %w", err)
	}
	return nil
}

// start starts the chassis and connects to its interfaces.
func (e *enforcement) start(ctx context.Context) error {
	uids := map[string]string{}
	for i, name := range []string{probeClient, probeServer + "0", probeServer + "1"} {
		pod, err := e.bench.world.clients.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get pod %s: %w", name, err)
		}
		at, err := stationOf(pod)
		if err != nil {
			return err
		}
		uids[name+"."+namespace] = string(pod.UID)
		if i > 0 {
			e.servers[i-1] = at
			continue
		}
		e.client = at
		router := pod.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()] + "-" + pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()]
		mac, err := e.column("Logical_Router_Port", "mac", []any{"name", "==", router})
		if err != nil {
			return err
		}
		if e.router, err = net.ParseMAC(fmt.Sprint(mac)); err != nil {
			return fmt.Errorf("read the address of router port %s: %w", router, err)
		}
	}
	var err error
	if e.serverPort, err = e.uuid("Logical_Switch_Port", []any{"name", "==", probeServer + "0." + namespace}); err != nil {
		return err
	}
	if e.chassis, err = e.bench.world.startChassis(ctx, uids); err != nil {
		return err
	}
	if err := e.connect(ctx); err != nil {
		return err
	}
	if err := e.bench.calm(ctx); err != nil {
		return err
	}
	return (directChanger{e}).serve()
}

func stationOf(pod *corev1.Pod) (at station, err error) {
	if at.mac, err = net.ParseMAC(pod.Annotations[kubeovnv1.AnnotationMACAddress.Key()]); err == nil {
		at.ip, err = netip.ParseAddr(pod.Annotations[kubeovnv1.AnnotationIPAddress.Key()])
	}
	if err != nil {
		return at, fmt.Errorf("read the addresses of pod %s: %w", pod.Name, err)
	}
	return at, nil
}

// connect connects to the interfaces of the probes' pods.
func (e *enforcement) connect(ctx context.Context) error {
	client, err := e.chassis.dial(ctx, probeClient+"."+namespace)
	if err != nil {
		return err
	}
	e.prober = prober{client: client, outcomes: make(chan outcome, 1000)}
	for i := range e.servers {
		server, err := e.chassis.dial(ctx, fmt.Sprint(probeServer, i, ".", namespace))
		if err != nil {
			return err
		}
		go receive(server, i, e.prober.outcomes)
	}
	return nil
}

// column returns a column of the one row that meets a condition (RFC 7047, section 5.1) in NB.
func (e *enforcement) column(table, column string, where []any) (any, error) {
	look := map[string]any{"op": "select", "table": table, "where": []any{where}, "columns": []string{column}}
	var results [1]struct{ Rows []map[string]any }
	if err := e.nb.Call("transact", []any{northbound, look}, &results); err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	if len(results[0].Rows) != 1 {
		return nil, fmt.Errorf("%s has %d rows with %v instead of one", table, len(results[0].Rows), where)
	}
	return results[0].Rows[0][column], nil
}

// uuid returns the UUID of the one row that meets a condition.
func (e *enforcement) uuid(table string, where []any) (string, error) {
	value, err := e.column(table, "_uuid", where)
	if err != nil {
		return "", err
	}
	pair, ok := value.([]any) // ["uuid", "…"]
	if !ok || len(pair) != 2 {
		return "", fmt.Errorf("%s has a UUID %v", table, value)
	}
	return fmt.Sprint(pair[1]), nil
}
