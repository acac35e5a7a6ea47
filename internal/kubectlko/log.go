// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	utilexec "k8s.io/client-go/util/exec"
)

// logGroups are the components of each group of `kubectl ko log`.
var logGroups = map[string][]string{
	"kube-ovn": {"kiln-operator", "kube-ovn-controller", agent, pinger, speaker, "kube-ovn-monitor"},
	"ovn":      {"ovn-central-nb", "ovn-central-sb", "ovn-central-northd", "ovn-central-backups"},
	"ovs":      {openVSwitch},
}

// nodeCommand is a program whose output on a node is written to a file.
type nodeCommand struct {
	file string
	argv []string
}

// commandTime bounds a program on a node.
const commandTime = 2 * time.Minute

// nodeState are the programs of the group linux: the network of each node.
var nodeState = []nodeCommand{
	{"addresses", []string{"ip", "-details", "address"}},
	{"routes", []string{"ip", "route", "show", "table", "all"}},
	{"routes6", []string{"ip", "-6", "route", "show", "table", "all"}},
	{"rules", []string{"ip", "rule"}},
	{"rules6", []string{"ip", "-6", "rule"}},
	{"neighbours", []string{"ip", "neighbour"}},
	{"nftables", []string{"nft", "list", "ruleset"}},
	// The image has no sysctl, and some files cannot be read. Two have secrets.
	{"sysctl", []string{"sh", "-c", "grep -rs . /proc/sys/net | grep -v -e tcp_fastopen_key -e stable_secret; true"}},
	{"switch", []string{"ovs-vsctl", "show"}},
	{"flows", []string{"ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br-int"}},
}

const (
	groupAll   = "all"
	groupLinux = "linux"
)

// logs returns the command `kubectl ko log`.
func (p *plugin) logs() *cobra.Command {
	directory := ""
	groups := []string{groupAll, "kube-ovn", "ovn", "ovs", groupLinux}
	cmd := &cobra.Command{
		Use:   "log {all|kube-ovn|ovn|ovs|linux}",
		Short: "Copies logs of components, and the state of the nodes' networks, to a local directory",
		Long: "Writes DIRECTORY/NODE/POD.log for each pod, POD.previous.log for its container before the last restart, and for linux\n" +
			"DIRECTORY/NODE/linux/… with addresses, routes, rules, nftables, sysctls and flows.",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: groups,
		RunE: func(cmd *cobra.Command, args []string) error { return p.collect(cmd.Context(), args[0], directory) },
	}
	cmd.Flags().StringVar(&directory, "directory", "kubectl-ko-log", "where the files are written")
	return cmd
}

// collect continues after an error, because the pods of a faulty cluster may not answer.
func (p *plugin) collect(ctx context.Context, group, directory string) error {
	var errs []error
	for _, name := range []string{"kube-ovn", "ovn", "ovs"} {
		if group != groupAll && group != name {
			continue
		}
		for _, component := range logGroups[name] {
			pods, err := p.podsOf(ctx, component)
			errs = append(errs, err)
			for i := range pods {
				errs = append(errs, p.copyLogs(ctx, &pods[i], directory, corev1.PodLogOptions{}))
			}
		}
	}
	if group == groupAll || group == groupLinux {
		errs = append(errs, p.collectNodes(ctx, directory))
	}
	if err := errors.Join(errs...); err != nil {
		return errors.New(err.Error()) // not the exit status of a program in a pod
	}
	fmt.Fprintln(p.out, directory)
	return nil
}

// copyLogs writes the log of a pod's first container, and the log before its last restart.
func (p *plugin) copyLogs(ctx context.Context, pod *corev1.Pod, directory string, options corev1.PodLogOptions) error {
	options.Container = pod.Spec.Containers[0].Name
	variants := map[string]corev1.PodLogOptions{".log": options}
	if slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 }) {
		options.Previous = true
		variants[".previous.log"] = options
	}
	var errs []error
	for suffix, options := range variants {
		errs = append(errs, inFile(filepath.Join(directory, pod.Spec.NodeName, pod.Name+suffix), func(file io.Writer) error {
			stream, err := p.pods.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &options).Stream(ctx)
			if err != nil {
				return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
			}
			defer stream.Close()
			if _, err := io.Copy(file, stream); err != nil {
				return fmt.Errorf("copy the log of pod %s: %w", pod.Name, err)
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// collectNodes runs the programs of nodeState on all nodes.
func (p *plugin) collectNodes(ctx context.Context, directory string) error {
	pods, err := p.podsOf(ctx, openVSwitch)
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods {
		errs = append(errs, p.collectNode(ctx, &pods[i], directory, nodeState))
	}
	return errors.Join(errs...)
}

// collectNode runs programs in a node's pod of Open vSwitch, which is on the host network. If the pod does not answer, it runs no others.
func (p *plugin) collectNode(ctx context.Context, pod *corev1.Pod, directory string, commands []nodeCommand) error {
	var errs []error
	for _, c := range commands {
		err := inFile(filepath.Join(directory, pod.Spec.NodeName, groupLinux, c.file), func(file io.Writer) error {
			_, err := fmt.Fprintf(file, "# %s\n", strings.Join(c.argv, " "))
			return errors.Join(err, p.output(ctx, pod, c.argv, file))
		})
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if ended := utilexec.ExitError(nil); !errors.As(err, &ended) {
			errs = append(errs, fmt.Errorf("node %s does not answer: the programs after %s were not run", pod.Spec.NodeName, c.file))
			break
		}
	}
	return errors.Join(errs...)
}

// output runs a program in a pod, without an input. The error contains the standard error of the program.
func (p *plugin) output(ctx context.Context, pod *corev1.Pod, argv []string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	said := &bytes.Buffer{}
	quiet := *p
	quiet.stdin, quiet.errOut = false, said
	err := quiet.run(ctx, pod, argv, out)
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		return fmt.Errorf("%w: %s", err, plain(text[:min(len(text), 1000)]))
	}
	return err
}

// inFile creates a file, with its directory, and writes it. Only the user can read it.
func inFile(path string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	return errors.Join(write(file), file.Close())
}
