// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovncluster

import (
	"net"
	"slices"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

func TestEndpoints(t *testing.T) {
	status := v1alpha1.DatabaseStatus{Members: []v1alpha1.DatabaseMember{
		{Node: "a", Address: "192.0.2.1"}, {Node: "b", Address: "2001:db8::2"}, {Node: "c", Address: "not yet"},
	}}
	want := []string{"ssl:192.0.2.1:6642", "ssl:[2001:db8::2]:6642"}
	if got := Endpoints(status, 6642); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAnswering(t *testing.T) {
	members := func(roles ...string) v1alpha1.DatabaseStatus {
		var db v1alpha1.DatabaseStatus
		for i, role := range roles {
			db.Members = append(db.Members, v1alpha1.DatabaseMember{Node: string(rune('a' + i)), Role: role})
		}
		return db
	}
	for name, c := range map[string]struct {
		db   v1alpha1.DatabaseStatus
		want string
	}{
		"all answer":        {members("leader", "follower", "follower"), "abc"},
		"one is silent":     {members("", "leader", "follower"), "bc"},
		"none has a leader": {members("candidate", "", ""), "a"},
		"none answers":      {members("", "", ""), "abc"},
	} {
		got := ""
		for _, m := range Answering(c.db).Members {
			got += m.Node
		}
		if got != c.want || len(c.db.Members) != 3 {
			t.Errorf("%s: %s of %d, want %s", name, got, len(c.db.Members), c.want)
		}
	}
}

func TestWatchGivesTheNewestState(t *testing.T) {
	config := apiserver.StartFor(t).Config
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	var observed atomic.Pointer[v1alpha1.OVNCluster]
	clusters, err := Watch(t.Context(), config, func(c *v1alpha1.OVNCluster) { observed.Store(c) })
	if err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	if err := api.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	until(t, clusters, "the cluster is seen", func(*v1alpha1.OVNCluster) bool { return true })
	for _, id := range []string{"one", "two", "three"} { // the test does not receive these
		cluster.Status.Northbound.ClusterID = id
		if err := api.Status().Update(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
	}
	until(t, clusters, "the last status is seen", func(c *v1alpha1.OVNCluster) bool { return c.Status.Northbound.ClusterID == "three" })
	if id := observed.Load().Status.Northbound.ClusterID; id != "three" {
		t.Errorf("the state %q was observed last", id)
	}
}

func until(t *testing.T, clusters <-chan *v1alpha1.OVNCluster, what string, seen func(*v1alpha1.OVNCluster) bool) {
	t.Helper()
	eventually.Wait{For: what}.Holds(t, func() bool {
		select {
		case c := <-clusters:
			return seen(c)
		default:
			return false
		}
	})
}

// A node must start without the API server: its last configuration is in local files.
func TestWatchBeginsWithoutTheAPIServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil { // the address refuses connections from here on
		t.Fatal(err)
	}
	if _, err := Watch(t.Context(), &rest.Config{Host: "http://" + listener.Addr().String()}, nil); err != nil {
		t.Errorf("got %v", err)
	}
}
