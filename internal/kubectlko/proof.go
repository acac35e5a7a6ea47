// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/trace"
	"github.com/kiln-net/kiln/internal/trace/reader"
)

const (
	// proofLife bounds the life of a pod with ovn-trace or ofproto/trace: it runs one program.
	proofLife = 2 * time.Minute
	// proofProgram bounds the program, in seconds: ovn-trace first reads the whole southbound database.
	proofProgram = "15"
	// proofPort is the southbound database's port for nodes.
	proofPort = "6642"
	// chassisKey is where a container has the node's own key and certificate, chassisTrust where it has the CA of the southbound database, by the names of the
	// ConfigMap's keys.
	chassisKey, chassisTrust     = "/etc/kiln/chassis", "/etc/kiln/trust"
	trustConfigMap, databaseFile = "kiln-trust", "sb-server.crt"
	// configDirectory is where a pod with Open vSwitch has the directory of the node that contains the key, keyDirectory the name there.
	configDirectory, keyDirectory = "/etc/openvswitch", "kiln"
	// ovsDirectory of a node has the sockets of Open vSwitch.
	ovsDirectory = "/run/openvswitch"
)

// ovnTraceScript ends ovn-trace after some seconds. The shell waits for it, because the first process of a container ignores the signals of others in the container.
const ovnTraceScript = `timeout -s KILL ` + proofProgram + ` ovn-trace "$@"
code=$?
[ $code != 137 ] || echo "ovn-trace has no answer after ` + proofProgram + ` seconds"
exit $code`

// ofprotoTrace finds the interface of a logical port, and sends a packet at it through the flows of the node. ovs-appctl takes the PID file of another PID namespace for a
// file without a process, so it gets the socket.
const ofprotoTrace = `number=$(ovs-vsctl --timeout=5 --bare --no-heading --columns=ofport find Interface "external_ids:iface-id=$1" 'ofport>0') || exit 1
set -- $number "$2"
[ $# = 2 ] || { echo "the port has no interface in Open vSwitch of this node, or several"; exit 1; }
read -r pid <` + ovsDirectory + `/ovs-vswitchd.pid || exit 1
exec ovs-appctl --timeout=` + proofProgram + ` --target=` + ovsDirectory + `/ovs-vswitchd.$pid.ctl ofproto/trace br-int "in_port=$1,$2"`

// ovnTrace returns the command `kubectl ko ovn-trace`.
func (p *plugin) ovnTrace() *cobra.Command {
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "ovn-trace A B [MAC] [PROTOCOL] [PORT]",
		Short: "ovn-trace for the packet of `kubectl ko trace A B`, on the southbound database",
		Long:  "It runs in a pod of its own in Kiln's namespace, and prints the output of ovn-trace for each family. " + proofRights,
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := q.parse(args)
			if err != nil {
				return err
			}
			return p.prove(cmd.Context(), query, false)
		},
	}
	q.add(cmd.Flags())
	return cmd
}

const proofRights = "It needs the rights of an administrator: to create pods in Kiln's namespace, and to read their logs."

// prove prints the output of ovn-trace, and of ofproto/trace on the node of the sender.
func (p *plugin) prove(ctx context.Context, q trace.Query, withOVS bool) error {
	c, err := p.traceClient()
	if err != nil {
		return err
	}
	if err := p.choose(ctx, c, &q); err != nil {
		return err
	}
	s, err := reader.Read(ctx, c, q)
	if err != nil {
		return fmt.Errorf("read the cluster: %w", err)
	}
	packets, err := trace.Packets(s, q)
	if err != nil {
		return fmt.Errorf("make the packet: %w", err)
	}
	pod, err := p.ovnTracePod(ctx, packets)
	if err != nil {
		return err
	}
	if err := p.runOnce(ctx, pod); err != nil || !withOVS {
		return err
	}
	fmt.Fprintln(p.out, "--------\n\nStart OVS Tracing")
	if pod, err = p.ofprotoPod(ctx, packets); err != nil {
		return err
	}
	return p.runOnce(ctx, pod)
}

// ovnTracePod returns the pod that runs ovn-trace for each packet, in a container of its own. It is on the node of the sender and has this node's key: the southbound database
// lets it read, and write the node's own rows only, which ovn-trace does not.
func (p *plugin) ovnTracePod(ctx context.Context, packets []trace.Packet) (*corev1.Pod, error) {
	oc, err := p.cluster(ctx)
	if err != nil {
		return nil, err
	}
	var remotes []string
	for _, m := range oc.Status.Southbound.Members {
		if m.Address != "" {
			remotes = append(remotes, "ssl:"+net.JoinHostPort(m.Address, proofPort))
		}
	}
	if len(remotes) == 0 {
		return nil, errors.New("the OVNCluster's status has no address of the southbound database")
	}
	on, err := p.podOn(ctx, openVSwitch, packets[0].Node)
	if err != nil {
		return nil, err
	}
	config := hostDirectory(on, configDirectory)
	if config == "" {
		return nil, fmt.Errorf("pod %s has no directory of its node at %s", on.Name, configDirectory)
	}
	pod := proofPod(on)
	pod.Spec.Volumes = []corev1.Volume{
		nodeVolume("chassis", path.Join(config, keyDirectory)),
		{Name: "trust", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: trustConfigMap}, Items: []corev1.KeyToPath{{Key: databaseFile, Path: databaseFile}},
		}}},
	}
	for i := range packets {
		command := append([]string{
			"sh", "-c", ovnTraceScript, "ovn-trace", "--no-leader-only", "--db=" + strings.Join(remotes, ","),
			"--private-key=" + chassisKey + "/tls.key", "--certificate=" + chassisKey + "/tls.crt", "--ca-cert=" + chassisTrust + "/" + databaseFile,
		}, packets[i].Arguments()...)
		addProof(pod, on, packets[i], command, corev1.VolumeMount{Name: "chassis", MountPath: chassisKey, ReadOnly: true}, corev1.VolumeMount{Name: "trust", MountPath: chassisTrust, ReadOnly: true})
	}
	return pod, nil
}

// hostDirectory returns the directory of its node that a pod has at a path; "" if it has none there.
func hostDirectory(pod *corev1.Pod, at string) string {
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		for _, volume := range pod.Spec.Volumes {
			if mount.MountPath == at && volume.Name == mount.Name && volume.HostPath != nil {
				return volume.HostPath.Path
			}
		}
	}
	return ""
}

func nodeVolume(name, directory string) corev1.Volume {
	kind := corev1.HostPathDirectory
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory, Type: &kind}}}
}

// ofprotoPod returns the pod that runs ofproto/trace for each packet on the node of the sender.
func (p *plugin) ofprotoPod(ctx context.Context, packets []trace.Packet) (*corev1.Pod, error) {
	on, err := p.podOn(ctx, openVSwitch, packets[0].Node)
	if err != nil {
		return nil, err
	}
	pod := proofPod(on)
	pod.Spec.Volumes = []corev1.Volume{nodeVolume("ovs", ovsDirectory)}
	for i := range packets {
		addProof(pod, on, packets[i], []string{"sh", "-c", ofprotoTrace, "sh", packets[i].Port, packets[i].Flow}, corev1.VolumeMount{Name: "ovs", MountPath: ovsDirectory, ReadOnly: true})
	}
	return pod, nil
}

// proofPod returns a pod on the node of a pod of Kiln, without containers.
func proofPod(like *corev1.Pod) *corev1.Pod {
	life, grace, no, root := int64(proofLife.Seconds()), int64(0), false, int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kubectl-ko-trace-"},
		Spec: corev1.PodSpec{
			NodeName: like.Spec.NodeName, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life,
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, ImagePullSecrets: like.Spec.ImagePullSecrets,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			// The key of the node and the sockets of Open vSwitch belong to root. Without SELinux the options have no effect.
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: &root, SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"}},
		},
	}
}

// addProof adds a container with another pod's image. Its memory is limited, and it is not in a pod of a database or of a node's network.
func addProof(pod, like *corev1.Pod, packet trace.Packet, command []string, mounts ...corev1.VolumeMount) {
	no, yes := false, true
	image := &like.Spec.Containers[0]
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: strings.ToLower(packet.Family), Image: image.Image, ImagePullPolicy: image.ImagePullPolicy, Command: command, VolumeMounts: mounts,
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourceCPU: resource.MustParse("1")}, Requests: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceCPU: resource.MustParse("10m"),
		}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	})
}

// runOnce runs a pod to its end, and prints the output of its containers.
func (p *plugin) runOnce(ctx context.Context, pod *corev1.Pod) error {
	return p.temporary(ctx, pod, func(made *corev1.Pod) error {
		ended := p.wait(ctx, made, proofLife, corev1.PodSucceeded)
		for i := range made.Spec.Containers {
			name := made.Spec.Containers[i].Name
			logs, err := p.pods.CoreV1().Pods(made.Namespace).GetLogs(made.Name, &corev1.PodLogOptions{Container: name}).Stream(ctx)
			if err == nil {
				_, err = io.Copy(p.out, logs)
				err = errors.Join(err, logs.Close())
			}
			if err != nil {
				ended = errors.Join(ended, fmt.Errorf("read the output of %s in pod %s: %w", name, made.Name, err))
			}
		}
		if ended != nil {
			return fmt.Errorf("run the pod %s: %w", made.Name, ended)
		}
		return nil
	})
}
