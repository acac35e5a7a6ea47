// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubectlko is `kubectl ko`. It runs OVN's and Open vSwitch's own programs in pods, and shows and controls the
// databases' state, backups and recovery through the OVNCluster. It checks the cluster before the installation or a migration. It acts with the
// permissions of its user.
package kubectlko

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/trace/reader"
)

// plugin is the state that the commands share.
type plugin struct {
	in          io.Reader
	out, errOut io.Writer
	// stdin is set if programs in pods read in.
	stdin     bool
	config    *rest.Config
	pods      kubernetes.Interface
	objects   client.Client
	namespace string
}

// NewCommand returns the command `kubectl ko`. Programs in pods read in, and their output is written to out and errOut.
func NewCommand(in io.Reader, out, errOut io.Writer) *cobra.Command {
	p := &plugin{in: in, out: out, errOut: errOut}
	var source func() clientcmd.ClientConfig
	root := &cobra.Command{
		Use:              "kubectl-ko",
		Annotations:      map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ko"},
		Short:            "Operates OVN as Kiln runs it",
		SilenceUsage:     true,
		SilenceErrors:    true,
		TraverseChildren: true, // arguments after the name of ovn-nbctl and similar programs are theirs
		Args:             known,

		SuggestionsMinimumDistance: 2,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if _, is := cmd.Annotations[unconnected]; is || cmd.HasSubCommands() || slices.Contains(offline, cmd.Name()) || cmd.Parent().Name() == "completion" {
				return nil
			}
			err := p.connect(source())
			if _, answers := cmd.Annotations[exitCodes]; answers && err != nil {
				return p.unanswered(err)
			}
			return err
		},
	}
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	f := root.PersistentFlags()
	source = p.connectionFlags(f)
	f.BoolVarP(&p.stdin, "stdin", "i", false, "pass the standard input to the program in the pod, as in: kubectl ko -i ofctl NODE add-flows br-int -")
	root.SetUsageTemplate(terse(root.UsageTemplate()))
	root.AddCommand(options())
	root.AddCommand(p.programs(source)...)
	root.AddCommand(missingCommands()...)
	root.AddCommand(p.envCheck(source), p.version(source), p.clusterStatus(), p.diagnose(source), p.reload(), p.perf(), p.bgp(source), p.logs(), p.sysdumpCommand(), p.tcpdump(), p.test(), p.dropsCommand(), p.traceCommand(), p.ovnTrace())
	for _, db := range databases {
		root.AddCommand(p.database(db))
	}
	return root
}

// terse is a template of the usage of a command, without the flags of all commands, which `options` lists as in kubectl.
func terse(template string) string {
	replaced := strings.NewReplacer("{{.LocalFlags.", "{{.LocalNonPersistentFlags.", "Global Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}",
		"`kubectl ko options` lists the flags of all commands.").Replace(template)
	return strings.ReplaceAll(replaced, "{{if .HasAvailableLocalFlags}}", "{{if .LocalNonPersistentFlags.HasAvailableFlags}}")
}

// options returns the command that lists the flags of all commands.
func options() *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "Lists the flags of all commands", Args: cobra.NoArgs, Annotations: map[string]string{unconnected: ""},
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "These flags can be passed to any command:\n\n%s", cmd.InheritedFlags().FlagUsages())
		},
	}
}

// offline are commands that print help, completions or their own version, and connect to the API server themselves if they need it.
var offline = []string{"help", "version", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// unconnected is the annotation of commands that need no API server.
const unconnected = "unconnected"

// missing are commands of Kube-OVN's plugin that this version does not have, and what to do instead. Scripts call them, so the error says that
// the command is missing here and not misspelt.
var missing = []struct{ name, instead string }{
	{"icnbctl", "Kiln runs no OVN-IC, so there is no interconnection northbound database"},
	{"icsbctl", "Kiln runs no OVN-IC, so there is no interconnection southbound database"},
}

// missingCommands returns commands that fail with any arguments, and that help does not list.
func missingCommands() []*cobra.Command {
	var commands []*cobra.Command
	for _, m := range missing {
		said := fmt.Sprintf("this version has no command %q of Kube-OVN's plugin: %s", m.name, m.instead)
		commands = append(commands, &cobra.Command{
			Use: m.name, Short: said, Hidden: true, DisableFlagParsing: true, Annotations: map[string]string{unconnected: ""},
			RunE: func(*cobra.Command, []string) error { return errors.New(said) },
		})
	}
	return commands
}

// known returns an error if the first argument, which names no command, is there. Without it cobra prints help and reports success, which
// scripts take for the answer of the command.
func known(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	similar := ""
	if names := root.SuggestionsFor(args[0]); len(names) > 0 {
		similar = fmt.Sprintf(" (is it %s?)", strings.Join(names, " or "))
	}
	return fmt.Errorf("unknown command %q%s: `kubectl ko --help` lists the commands", args[0], similar)
}

func (p *plugin) connect(source clientcmd.ClientConfig) error {
	var err error
	if p.config, err = source.ClientConfig(); err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	p.config.QPS, p.config.Burst = 50, 300 // as kubectl
	if p.pods, err = kubernetes.NewForConfig(p.config); err != nil {
		return fmt.Errorf("make a client of pods: %w", err)
	}
	scheme, err := reader.Scheme()
	if err != nil {
		return err
	}
	if p.objects, err = client.New(p.config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client of objects: %w", err)
	}
	return nil
}

func (p *plugin) cluster(ctx context.Context) (*v1alpha1.OVNCluster, error) {
	oc := &v1alpha1.OVNCluster{}
	if err := p.objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc); err != nil {
		return nil, fmt.Errorf("read the OVNCluster: %w", err)
	}
	return oc, nil
}
