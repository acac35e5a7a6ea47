// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// connectionFlags adds kubectl's flags for the connection to the API server, and returns the configuration that they select. The namespace is
// the one of Kiln's pods, and not the one of the context.
func (p *plugin) connectionFlags(f *pflag.FlagSet) func() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	overrides := &clientcmd.ConfigOverrides{}
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	names.AuthOverrideFlags.Username.LongName, names.AuthOverrideFlags.Password.LongName = "", "" // kubectl does not have them
	names.ContextOverrideFlags.Namespace.LongName = ""
	clientcmd.BindOverrideFlags(overrides, f, names)
	f.StringVar(&rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "file that says how to reach the API server")
	f.StringVarP(&p.namespace, "namespace", "n", metav1.NamespaceSystem, "where Kiln's pods are")
	return func() clientcmd.ClientConfig {
		return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	}
}

// completeNodes completes the name of a node as the first argument. It completes nothing if the API server does not answer.
func (p *plugin) completeNodes(source func() clientcmd.ClientConfig) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 || p.connect(source()) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := p.pods.CoreV1().Nodes().List(cmd.Context(), metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "=linux"})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := make([]string, 0, len(list.Items))
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
