// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Migration lists the parts of a Kube-OVN installation that Kiln would not carry over, and proposes an OVNCluster.
func Migration(c *Cluster) (*Report, error) {
	p := newProposal()
	var found []Finding
	if len(c.kubeOVN()) == 0 {
		found = append(found, Finding{Warning, "Kube-OVN", "none of its workloads exists: its settings are unknown, and the proposal has only the networks of the default subnets"})
	}
	for i := range c.Workloads {
		if w := &c.Workloads[i]; !ofKiln(w.Labels) {
			found = append(found, w.migrate(p)...)
		}
	}
	found = append(found, c.features()...)
	found = append(found, c.externalGateways()...)
	o := decode(c)
	found = append(found, o.findings...)
	found = append(found, c.annotations()...)
	found = append(found, c.otherNetworks()...)
	if err := p.adoptNetworks(o); err != nil {
		found = append(found, Finding{Lost, "Proposal", err.Error()})
	}
	p.spec.Network = defaultNetwork(p.spec.Network)
	for _, f := range append(o.conflicts(c, p.spec.Network), networks(c, &p.spec)...) {
		if f.Level != OK {
			found = append(found, f)
		}
	}
	manifest, err := p.manifest()
	if err != nil {
		return nil, err
	}
	report := newReport(found)
	report.OVNCluster = manifest
	return report, nil
}

// kubeOVN returns the names of the workloads of Kube-OVN.
func (c *Cluster) kubeOVN() (names []string) {
	for i := range c.Workloads {
		if w := &c.Workloads[i]; w.component() != nil {
			names = append(names, w.Kind+" "+w.Namespace+"/"+w.Name)
		}
	}
	return names
}

// component returns the component of Kube-OVN that a workload is, or nil.
func (w *Workload) component() *component {
	at := slices.IndexFunc(components, func(c component) bool { return c.name == w.Name })
	if at < 0 || ofKiln(w.Labels) || w.Kind != "DaemonSet" && w.Kind != "Deployment" && w.Kind != "StatefulSet" {
		return nil
	}
	return &components[at]
}

func (w *Workload) subject(setting string) string { return w.Kind + " " + w.Name + " " + setting }

// migrate judges the settings of a workload of Kube-OVN, and adds to the proposal those with a field.
func (w *Workload) migrate(p *proposal) []Finding {
	of := w.component()
	switch {
	case of == nil:
		return nil
	case of.settings == nil:
		return []Finding{{of.level, w.Kind + " " + w.Name, of.text}}
	}
	found := p.placement(w)
	known := of.settings()
	for _, g := range w.given() {
		at := slices.IndexFunc(known, func(s setting) bool { return s.name == g.name })
		switch {
		case at >= 0:
			found = append(found, known[at].judge(w, g, p)...)
		case g.argument:
			found = append(found, Finding{Lost, w.subject(g.String()), "this version of `kubectl ko` does not know the flag: compare its effect with docs/reference/compatibility.md"})
		}
	}
	return found
}

// given is an argument or an environment variable with its value.
type given struct {
	name, value string
	argument    bool
}

func (g given) String() string {
	prefix := ""
	if g.argument {
		prefix = "--"
	}
	return prefix + g.name + "=" + g.value
}

// judge returns the finding about one given setting, or none.
func (s setting) judge(w *Workload, g given, p *proposal) []Finding {
	f := Finding{s.level, w.subject(g.String()), s.text}
	switch {
	case s.level == "" || g.value == "" || slices.Contains(s.none, g.value):
		return nil
	case s.carry == nil:
		return []Finding{f}
	}
	f.Message = s.field
	if why := s.carry(p, g.value); why != "" {
		f.Level, f.Message = Lost, why
	}
	return []Finding{f}
}

// given returns the arguments and environment variables of all containers. Variables whose values are not in the manifest are skipped.
func (w *Workload) given() (all []given) {
	for _, c := range slices.Concat(w.Template.Spec.InitContainers, w.Template.Spec.Containers) {
		values := map[string]string{}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				values[e.Name] = e.Value
				all = append(all, given{name: e.Name, value: e.Value})
			}
		}
		all = append(all, arguments(append(slices.Clone(c.Command), c.Args...), values)...)
	}
	slices.SortStableFunc(all, func(a, b given) int { return cmp.Compare(a.name, b.name) })
	return slices.Compact(all) // several containers may have the same
}

// arguments parses flags in the forms --name=value, --name value and --name. $(NAME) stands for a variable.
func arguments(words []string, variables map[string]string) (all []given) {
	for i := 0; i < len(words); i++ {
		name, is := strings.CutPrefix(words[i], "-")
		if name = strings.TrimPrefix(name, "-"); !is || name == "" || strings.ContainsAny(name, " \n") {
			continue // the program, or a script
		}
		name, value, has := strings.Cut(name, "=")
		if !has {
			value = "true"
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				i++
				value = words[i]
			}
		}
		if len(name) == 1 && name != "v" {
			continue // of a shell
		}
		for variable, content := range variables {
			value = strings.ReplaceAll(value, "$("+variable+")", content)
		}
		all = append(all, given{name, value, true})
	}
	return all
}

// features reports the ConfigMaps that turn on a feature.
func (c *Cluster) features() (found []Finding) {
	for _, m := range c.ConfigMaps {
		for _, f := range features {
			if m.Name == f.configMap && m.Data[f.key] == "true" {
				found = append(found, Finding{Lost, "ConfigMap " + m.Name + " " + f.key, f.text})
			}
		}
	}
	return found
}

// adoptNetworks takes the networks from the default subnets: they are in use, whatever the arguments of the controller are.
func (p *proposal) adoptNetworks(o *objects) error {
	for name, list := range map[string]*[]string{kubeovnv1.DefaultSubnet: &p.spec.Network.PodCIDRs, kubeovnv1.JoinSubnet: &p.spec.Network.JoinCIDRs} {
		at := slices.IndexFunc(o.subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == name })
		if at < 0 {
			continue
		}
		cidrs, err := ipfamily.ParseCIDRs(o.subnets[at].Spec.CIDRBlock)
		if err != nil {
			return fmt.Errorf("the cidrBlock of Subnet %s cannot be read: %w", name, err)
		}
		*list = nil
		for _, cidr := range cidrs {
			*list = append(*list, cidr.String())
		}
	}
	if len(p.spec.Network.PodCIDRs) > 2 || len(p.spec.Network.JoinCIDRs) != len(p.spec.Network.PodCIDRs) && len(p.spec.Network.JoinCIDRs) > 0 {
		return fmt.Errorf("subnets %s and %s have different families: give both the same", kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet)
	}
	return nil
}

// usesKubeOVN finds the plugin, or the plugin for addresses, in the configuration of a network (CNI, `type`).
var usesKubeOVN = regexp.MustCompile(`"type"\s*:\s*"kube-ovn"`)

// otherNetworks reports networks of pods that Kube-OVN serves besides the first.
func (c *Cluster) otherNetworks() (found []Finding) {
	for i := range c.Attachments {
		a := &c.Attachments[i]
		spec, _ := a.Object["spec"].(map[string]any)
		if config, _ := spec["config"].(string); usesKubeOVN.MatchString(config) {
			found = append(found, Finding{Lost, "NetworkAttachmentDefinition " + a.GetNamespace() + "/" + a.GetName(),
				"it uses the plugin or the addresses of Kube-OVN: Kiln serves the first network of a pod only"})
		}
	}
	for i := range c.Nodes {
		if c.Nodes[i].Labels["ovn.kubernetes.io/ovs_dp_type"] == "userspace" {
			found = append(found, Finding{Lost, "Node " + c.Nodes[i].Name, "the userspace datapath of one node: nodes.datapath is for all nodes"})
		}
	}
	return found
}
