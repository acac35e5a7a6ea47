// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// logGroups are the components of each group of `kubectl ko log`.
var logGroups = map[string][]string{
	"kube-ovn": {"kiln-operator", "kube-ovn-controller", "kube-ovn-cni", pinger, speaker, "kube-ovn-monitor"},
	"ovn":      {"ovn-central-nb", "ovn-central-sb", "ovn-central-northd", "ovn-central-backups"},
	"ovs":      {openVSwitch},
}

// nodeState are commands whose output is the group linux: the network of each node, in the file of this name.
var nodeState = []struct {
	file string
	argv []string
}{
	{"addresses", []string{"ip", "-details", "address"}},
	{"routes", []string{"ip", "route", "show", "table", "all"}},
	{"routes6", []string{"ip", "-6", "route", "show", "table", "all"}},
	{"rules", []string{"ip", "rule"}},
	{"rules6", []string{"ip", "-6", "rule"}},
	{"neighbours", []string{"ip", "neighbour"}},
	{"nftables", []string{"nft", "list", "ruleset"}},
	{"sysctl", []string{"sh", "-c", "grep -rs . /proc/sys/net; true"}}, // the image has no sysctl, and some files cannot be read
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
				errs = append(errs, p.copyLogs(ctx, &pods[i], directory))
			}
		}
	}
	if group == groupAll || group == groupLinux {
		errs = append(errs, p.collectNodes(ctx, directory))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintln(p.out, directory)
	return nil
}

// copyLogs writes the log of a pod's first container, and the log before its last restart.
func (p *plugin) copyLogs(ctx context.Context, pod *corev1.Pod, directory string) error {
	variants := map[string]*corev1.PodLogOptions{".log": {Container: pod.Spec.Containers[0].Name}}
	if slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 }) {
		variants[".previous.log"] = &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name, Previous: true}
	}
	var errs []error
	for suffix, options := range variants {
		errs = append(errs, inFile(filepath.Join(directory, pod.Spec.NodeName, pod.Name+suffix), func(file io.Writer) error {
			stream, err := p.pods.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
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

// collectNodes runs the commands of nodeState in the pods of Open vSwitch, which are on the host network.
func (p *plugin) collectNodes(ctx context.Context, directory string) error {
	pods, err := p.podsOf(ctx, openVSwitch)
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods {
		for _, c := range nodeState {
			path := filepath.Join(directory, pods[i].Spec.NodeName, groupLinux, c.file)
			errs = append(errs, inFile(path, func(file io.Writer) error {
				_, err := fmt.Fprintf(file, "# %s\n", strings.Join(c.argv, " "))
				return errors.Join(err, p.run(ctx, &pods[i], c.argv, file))
			}))
		}
	}
	return errors.Join(errs...)
}

// inFile creates a file, with its directory, and writes it. Only the user can read it.
func inFile(path string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the directory of logs: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("create a log: %w", err)
	}
	return errors.Join(write(file), file.Close())
}
