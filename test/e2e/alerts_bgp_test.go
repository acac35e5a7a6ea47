// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// labHost is the address of this process in the network of the nodes (docs/development/lab.md).
const labHost = "172.30.0.1"

// failingRouters gives a node two BGP peers: an address without a host, and a router of this process that ends the session again and again.
func failingRouters(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	const silent, port = "172.30.0.240", 1790
	node := suite.Workers[0]
	address := addressOfNode(ctx, node, netip.MustParseAddr(labHost)).String()
	router := gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(slog.DiscardHandler), nil))
	go router.Serve()
	Expect(router.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: 65002, RouterId: labHost, ListenPort: port, ListenAddresses: []string{labHost},
	}})).To(Succeed())
	Expect(router.AddPeer(ctx, &api.AddPeerRequest{Peer: &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: address, PeerAsn: 65001},
		Transport: &api.Transport{PassiveMode: true, LocalAddress: labHost},
		Timers:    &api.Timers{Config: &api.TimersConfig{HoldTime: 9, ConnectRetry: 1, IdleHoldTimeAfterReset: 1}},
	}})).To(Succeed())
	setLabel := func(ctx context.Context, value string) {
		GinkgoHelper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		Expect(suite.Objects.Patch(ctx, n, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, v1alpha1.SpeakerNodeLabel, value)))).To(Succeed())
	}
	resets, enough := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	stop := sync.OnceFunc(func() { enough(); done.Wait(); router.Stop() })
	DeferCleanup(func(ctx SpecContext) { stop(); setLabel(ctx, "null") }, NodeTimeout(time.Minute))
	setLabel(ctx, `"true"`)
	undo := changeOVNCluster(ctx, fmt.Sprintf(`{"speaker":{"asn":65001,"peers":[{"address":%q,"asn":65002,"port":%d,"connectRetry":"1s"},{"address":%q,"asn":65003}]}}`,
		labHost, port, silent), `{"speaker":null}`)
	done.Go(func() {
		for pause(resets, time.Second) == nil {
			_ = router.ResetPeer(resets, &api.ResetPeerRequest{Address: address}) // without a session it has no effect
		}
	})
	return func(ctx context.Context) {
		undo(ctx)
		stop()
		setLabel(ctx, "null")
	}
}
