// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/envcheck"
)

// Exit codes of `kubectl ko env-check`, besides 0.
const (
	exitFailed = 1 // a check failed, or something is not carried over
	exitUnread = 2 // the arguments are wrong, or the cluster cannot be read
)

// formatManifest is the proposed OVNCluster alone.
const formatManifest = "ovncluster"

// envCheck returns the command `kubectl ko env-check`.
func (p *plugin) envCheck(source func() clientcmd.ClientConfig) *cobra.Command {
	var c environmentCheck
	var o output
	cmd := &cobra.Command{
		Use:   "env-check",
		Short: "Checks whether the cluster fits Kiln, or with --migrate which settings of Kube-OVN would be lost",
		Long: "Checks whether the cluster fits Kiln: through the API, and on nodes by a pod on each, which it deletes at the end. It changes nothing else, and with\n" +
			"--pods=false it only reads the API. Before the installation, --image names Kiln's image for these pods.\n\n" +
			"With --migrate, it lists the kinds, fields, annotations and settings of an installed Kube-OVN that Kiln would not carry over, and\n" +
			"proposes an OVNCluster.\n\n" +
			"Exit codes: 0 if nothing failed and nothing is lost, 1 otherwise, 2 if the cluster cannot be read.",
		Args: func(cmd *cobra.Command, args []string) error { return p.unread(cobra.NoArgs(cmd, args)) },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return p.unread(p.connect(source()))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			printer, err := o.printer()
			if err != nil {
				return p.unread(err)
			}
			if o.format == formatManifest && !c.migrate {
				return p.unread(fmt.Errorf("--output %s prints the OVNCluster that --migrate proposes: add --migrate, or use another format", formatManifest))
			}
			report, err := p.checkEnvironment(cmd.Context(), c)
			if err != nil {
				return p.unread(err)
			}
			write := report.WriteText
			if o.format == formatManifest {
				write = report.WriteManifest
			}
			if err := writeAs(p.out, printer, report, write); err != nil {
				return p.unread(err)
			}
			if report.Failed() {
				return utilexec.CodeExitError{Err: errors.New("the report has findings that are failed or lost"), Code: exitFailed}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return p.unread(err) })
	f := cmd.Flags()
	f.BoolVar(&c.migrate, "migrate", false, "list kinds, fields and flags of the installed Kube-OVN that Kiln would not carry over, and propose an OVNCluster")
	o.add(cmd, formatText, formatManifest)
	f.BoolVar(&c.onNodes, "pods", true, "check nodes by pods; without them, the command only reads the API")
	c.run.add(f)
	f.StringVarP(&c.file, "filename", "f", "", "manifest with the OVNCluster to check for, and perhaps other documents; the default is the OVNCluster in the API, or `spec: {}` without one")
	return cmd
}

// unread prints an error and returns it with its exit code. main prints no error that has an exit code.
func (p *plugin) unread(err error) error {
	if err == nil {
		return nil
	}
	fmt.Fprintln(p.errOut, "error:", err)
	return utilexec.CodeExitError{Err: err, Code: exitUnread}
}

// environmentCheck are the flags of `kubectl ko env-check`.
type environmentCheck struct {
	migrate bool
	file    string
	// onNodes: nodes are checked by pods, by those of run.
	onNodes bool
	run     podRunFlags
}

func (p *plugin) checkEnvironment(ctx context.Context, c environmentCheck) (*envcheck.Report, error) {
	switch {
	case c.migrate && c.file != "":
		return nil, errors.New("--filename has no effect with --migrate, which proposes an OVNCluster: leave it out")
	case (c.migrate || !c.onNodes) && len(c.run.nodes) > 0:
		return nil, errors.New("--node has no effect with --migrate and with --pods=false, which check no nodes: leave it out")
	case c.run.maxNodes < 1:
		return nil, errors.New("--max-nodes must be greater than 0")
	}
	spec, err := specOf(c.file)
	if err != nil {
		return nil, err
	}
	cluster, err := envcheck.Read(ctx, p.objects, p.pods.Discovery())
	if err != nil {
		return nil, err
	}
	if c.migrate {
		return envcheck.Migration(cluster)
	}
	if spec == nil && cluster.OVNCluster != nil {
		spec = &cluster.OVNCluster.Spec
	}
	if spec == nil {
		spec = &v1alpha1.OVNClusterSpec{}
	}
	report := envcheck.Environment(cluster, spec)
	if !c.onNodes {
		return report, nil
	}
	return report, p.newNodesRun(c.run).checkNodes(ctx, report, cluster, spec)
}

// specOf reads the OVNCluster in a manifest, which may have documents of other kinds; nil without a file.
func specOf(file string) (*v1alpha1.OVNClusterSpec, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	var spec *v1alpha1.OVNClusterSpec
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		found, err := specIn(document, err)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the manifest %s: %w", file, err)
		case found != nil && spec != nil:
			return nil, fmt.Errorf("the manifest %s has several documents of kind OVNCluster: leave one", file)
		case found != nil:
			spec = found
		}
	}
	if spec == nil {
		return nil, fmt.Errorf("the manifest %s has no document of kind OVNCluster", file)
	}
	return spec, nil
}

// specIn returns the spec of a document of kind OVNCluster; nil for documents of other kinds. err is the error that reading it has returned.
func specIn(document []byte, err error) (*v1alpha1.OVNClusterSpec, error) {
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, err
	}
	if kind.Kind != "OVNCluster" {
		return nil, nil
	}
	var cluster v1alpha1.OVNCluster
	if err := yaml.UnmarshalStrict(document, &cluster); err != nil {
		return nil, err
	}
	return &cluster.Spec, nil
}
