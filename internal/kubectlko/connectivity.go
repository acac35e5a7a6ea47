// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// accessLabel selects the pod that the NetworkPolicy admits.
const accessLabel = "kubectl-ko-test-access"

// Roles of pods of `kubectl ko test` only.
const (
	closedPod   = "closed"   // on the last node, selected by the NetworkPolicy
	admittedPod = "admitted" // on the first node, admitted by the NetworkPolicy
	probedPod   = "probed-ipv6"
	vpcPod      = "vpc-%d" // 0 on the first node, 1 on the last one
)

// connectivityFlags are the flags of `kubectl ko test` itself.
type connectivityFlags struct {
	outside  []string
	vpcCIDRs []string
}

// test returns the command `kubectl ko test`.
func (p *plugin) test() *cobra.Command {
	var run podRunFlags
	var o connectivityFlags
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Checks with packets that pods, nodes, Services, NetworkPolicies and VPCs work, on up to 8 nodes",
		Long: "It creates pods with Kiln's image in two namespaces of its own, a Vpc and a Subnet, and deletes all of them at the end.\n\n" +
			"Exit codes: 0 if all checks pass, 1 otherwise. A failure names the nodes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.newConnectivity(run, o).run(cmd.Context())
		},
	}
	f := cmd.Flags()
	run.add(f)
	f.StringSliceVar(&o.outside, "outside", nil, "ADDRESS:PORT of TCP servers outside of the cluster that pods must reach; can be repeated")
	f.StringSliceVar(&o.vpcCIDRs, "vpc-cidrs", []string{"198.18.17.0/24", "fd00:198:18:17::/112"}, "networks of the subnet in a VPC of its own, one of each family")
	return cmd
}

// connectivity is one run of `kubectl ko test`.
type connectivity struct {
	podRun
	connectivityFlags
	// dual is true if the cluster has both families.
	dual               bool
	service, apiServer *corev1.Service
	outsideTargets     []netip.AddrPort
}

func (p *plugin) newConnectivity(run podRunFlags, o connectivityFlags) *connectivity {
	c := &connectivity{podRun: p.newPodRun(run, "", "-vpc"), connectivityFlags: o}
	c.others = []client.Object{&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: c.name}}, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: c.vpc()}}}
	return c
}

// vpcNamespace is the namespace of the pods in the Vpc.
func (c *connectivity) vpcNamespace() string { return c.namespaces[1] }

// vpc is the name of the Vpc, which its Subnet cannot share.
func (c *connectivity) vpc() string { return c.vpcNamespace() }

func (c *connectivity) run(ctx context.Context) (err error) {
	if c.outsideTargets, err = parseOutside(c.outside); err != nil {
		return err
	}
	if err := c.checkRights(ctx, c.rights()); err != nil {
		return err
	}
	if err := c.findHosts(ctx); err != nil {
		return err
	}
	c.limitHosts()
	defer c.cleanUp(ctx)
	began := time.Now()
	fmt.Fprintf(c.errOut, "starting pods on %d nodes, in namespaces %s and %s\n", len(c.hosts), c.name, c.vpcNamespace())
	if err := c.create(ctx); err != nil {
		return err
	}
	if err := c.await(ctx); err != nil {
		return err
	}
	if err := c.judgeAll(ctx, c.table()); err != nil {
		return err
	}
	return c.verdict(began)
}

// rights returns the permissions that `kubectl ko test` needs.
func (c *connectivity) rights() []right {
	return append(c.podRights(),
		right{corev1.NamespaceDefault, corev1.GroupName, "services", "get"},
		right{"", kubeovnv1.GroupVersion.Group, "vpcs", "create get delete"},
		right{"", kubeovnv1.GroupVersion.Group, "subnets", "create get list delete"},
		right{c.name, corev1.GroupName, "services", "create"},
		right{c.name, networkingv1.GroupName, "networkpolicies", "create delete"},
	)
}

// create creates all objects. The pods of all checks start at the same time.
func (c *connectivity) create(ctx context.Context) error {
	blocks, err := c.vpcBlocks(ctx)
	if err != nil {
		return err
	}
	c.dual = len(blocks) > 1
	if err := c.createNamespaces(ctx); err != nil {
		return err
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "server"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{roleLabel: c.served()}, IPFamilyPolicy: &policy, PublishNotReadyAddresses: true, // probes of kubelets are another check
		Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(probedPort)},
			{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(probedPort), Protocol: corev1.ProtocolUDP},
		},
	}}
	if c.service, err = c.pods.CoreV1().Services(c.name).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the Service: %w", err)
	}
	if c.apiServer, err = c.pods.CoreV1().Services(corev1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read the Service of the API server: %w", err)
	}
	if err := c.createVPC(ctx, blocks); err != nil {
		return err
	}
	c.wanted = c.allPods()
	return c.createPods(ctx)
}

// served is the pod of the Service.
func (c *connectivity) served() string { return fmt.Sprintf(clientPod, len(c.hosts)-1) }

// allPods returns the pods of all checks.
func (c *connectivity) allPods() []*corev1.Pod {
	first, last := c.hosts[0], c.hosts[len(c.hosts)-1]
	var pods []*corev1.Pod
	for i, h := range c.hosts {
		pods = append(pods, serverPod(c.name, fmt.Sprintf(clientPod, i), h), waitingPod(c.name, fmt.Sprintf(hostPod, i), h))
	}
	admitted := serverPod(c.name, admittedPod, first)
	admitted.Labels[accessLabel] = ""
	pods = append(pods, serverPod(c.name, neighbourPod, first), serverPod(c.name, closedPod, last), admitted)
	if c.dual { // kubelets probe the first address of a pod
		probed := serverPod(c.name, probedPod, last)
		probed.Annotations = map[string]string{kubeovnv1.AnnotationIPFamily.Key(): "ipv6"}
		pods = append(pods, probed)
	}
	for i, h := range []host{first, last} {
		pod := serverPod(c.vpcNamespace(), fmt.Sprintf(vpcPod, i), h)
		pod.Spec.Containers[0].ReadinessProbe = nil
		pods = append(pods, pod)
	}
	return pods
}
