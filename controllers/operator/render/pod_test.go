// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/workload"
)

// TestEveryPodCanRunBeforeTheNetwork checks the settings without which a component cannot start before the pod network
// exists. kube-ovn-pinger runs on that network.
func TestEveryPodCanRunBeforeTheNetwork(t *testing.T) {
	for name, build := range operands {
		for _, o := range build(everything()) {
			template := workload.Template(o)
			if template == nil || o.GetName() == PingerName {
				continue
			}
			t.Run(name, func(t *testing.T) {
				spec := template.Spec
				if !spec.HostNetwork || spec.DNSPolicy != corev1.DNSDefault {
					t.Errorf("hostNetwork %v, dnsPolicy %s: nothing else works before the network", spec.HostNetwork, spec.DNSPolicy)
				}
				if spec.NodeSelector[corev1.LabelOSStable] != "linux" {
					t.Errorf("node selector %v: there may be nodes with another system", spec.NodeSelector)
				}
				for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeNetworkUnavailable, v1alpha1.ControlPlaneLabel} {
					if !tolerates(spec.Tolerations, taint) {
						t.Errorf("does not tolerate %s", taint)
					}
				}
				env := map[string]string{}
				for _, e := range spec.Containers[0].Env {
					env[e.Name] = e.Value
				}
				if env["KUBERNETES_SERVICE_HOST"] != "192.0.2.1" || env["KUBERNETES_SERVICE_PORT"] != "6443" {
					t.Errorf("the API server is %s:%s", env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"])
				}
			})
		}
	}
}

// TestNoContainerHasMoreThanItNeeds checks the security settings of all components: listed capabilities only and a
// read-only image.
func TestNoContainerHasMoreThanItNeeds(t *testing.T) {
	most := map[string][]corev1.Capability{
		OpenVSwitch: {netAdmin, netBroadcast, netRaw, sysNice}, CleanUpName: {netAdmin, netBroadcast, netRaw, sysNice},
		AgentName: {netAdmin, netRaw, sysAdmin},
	}
	for name, build := range operands {
		for _, o := range build(defaults()) {
			template := workload.Template(o)
			if template == nil {
				continue
			}
			t.Run(name, func(t *testing.T) {
				s := template.Spec.Containers[0].SecurityContext
				if s.Privileged != nil || !*s.ReadOnlyRootFilesystem || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					t.Errorf("security context: %+v", s)
				}
				if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, most[o.GetName()]) {
					t.Errorf("capabilities: %+v", s.Capabilities)
				}
				pod, hostPaths := template.Spec.SecurityContext, false
				for _, v := range template.Spec.Volumes {
					hostPaths = hostPaths || v.HostPath != nil
				}
				if nonRoot := pod != nil && pod.RunAsNonRoot != nil && *pod.RunAsNonRoot; nonRoot == hostPaths {
					t.Errorf("not root: %v, but directories of the node, which are root's: %v", nonRoot, hostPaths)
				}
				c, holds := template.Spec.Containers[0], o.GetName() == ImageName // it needs nothing but to be there
				if len(c.Resources.Requests) == 0 || (c.ReadinessProbe == nil) != holds {
					t.Error("no readiness or requests")
				}
				dispensable := holds || o.GetName() == PingerName // no reason to evict other pods
				if (template.Spec.PriorityClassName == "") != dispensable {
					t.Errorf("priority %q", template.Spec.PriorityClassName)
				}
			})
		}
	}
}

// TestResourcesOfAComponentComeFirst checks which field of the spec sets the resources of each container.
func TestResourcesOfAComponentComeFirst(t *testing.T) {
	cpu := func(n string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}}
	}
	shared := func(c *Config) {
		c.Spec.Central.Resources, c.Spec.Agent.Resources, c.Spec.Controller.Resources = cpu("1"), cpu("2"), cpu("3")
	}
	own := func(c *Config) {
		shared(c)
		c.Spec.Central.Northbound.Resources, c.Spec.Central.Southbound.Resources, c.Spec.Central.Northd.Resources = cpu("11"), cpu("12"), cpu("13")
		c.Spec.Agent.CNI.Resources, c.Spec.Agent.OpenVSwitch.Resources, c.Spec.Central.Backup.Resources = cpu("21"), cpu("22"), cpu("14")
	}
	for _, tt := range []struct {
		component          string
		unset, shared, own string
	}{
		{NorthboundName, "", "1", "11"},
		{SouthboundName, "", "1", "12"},
		{NorthdName, "", "1", "13"},
		{BackupsName, "", "", "14"},
		{AgentName, "", "2", "21"},
		{OpenVSwitch, "", "2", "22"},
		{ControllerName, "", "3", "3"},
		{CleanUpName, "", "2", "2"},
		{ImageName, "", "", ""},
	} {
		for set, want := range map[string]string{"unset": tt.unset, "shared": tt.shared, "own": tt.own} {
			c := defaults()
			c.Spec.Central.Backup.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: "backups"}
			map[string]func(*Config){"unset": func(*Config) {}, "shared": shared, "own": own}[set](&c)
			for _, o := range OperandOf(tt.component).Objects(c) {
				template := workload.Template(o)
				if template == nil {
					continue
				}
				limit, limited := template.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU]
				if got := limit.String(); limited && got != want || !limited && want != "" {
					t.Errorf("%s with %s resources has the limit %s, want %q", tt.component, set, got, want)
				}
				if !limited && template.Spec.Containers[0].Resources.Requests.Cpu().IsZero() {
					t.Errorf("%s with %s resources requests nothing", tt.component, set)
				}
			}
		}
	}
}

// TestEveryPodPullsWithTheSecrets checks all operands, also those that run only during upgrades and removals.
func TestEveryPodPullsWithTheSecrets(t *testing.T) {
	for name, build := range operands {
		for _, c := range []Config{defaults(), everything()} {
			want, policy := c.Spec.ImagePullSecrets, cmp.Or(c.Spec.ImagePullPolicy, corev1.PullIfNotPresent)
			for _, o := range build(c) {
				template := workload.Template(o)
				if template != nil && (!slices.Equal(template.Spec.ImagePullSecrets, want) || template.Spec.Containers[0].ImagePullPolicy != policy) {
					t.Errorf("%s: %v, %s; want %v, %s", name, template.Spec.ImagePullSecrets, template.Spec.Containers[0].ImagePullPolicy, want, policy)
				}
			}
		}
	}
}

// TestTolerationsAreAdded checks that the tolerations of a placement are added to Kiln's own, for its components only.
func TestTolerationsAreAdded(t *testing.T) {
	c := defaults()
	c.Spec.Central.Backup.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: "backups"}
	c.Spec.Central.Tolerations = []corev1.Toleration{{Key: "central", Operator: corev1.TolerationOpExists}}
	c.Spec.Controller.Tolerations = []corev1.Toleration{{Key: "controller", Operator: corev1.TolerationOpExists}}
	for component, key := range map[string]string{
		NorthboundName: "central", SouthboundName: "central", NorthdName: "central", BackupsName: "central", ControllerName: "controller",
	} {
		for _, o := range OperandOf(component).Objects(c) {
			template := workload.Template(o)
			if template == nil {
				continue
			}
			for _, taint := range []string{v1alpha1.ControlPlaneLabel, "central", "controller"} {
				if got, want := tolerates(template.Spec.Tolerations, taint), taint == v1alpha1.ControlPlaneLabel || taint == key; got != want {
					t.Errorf("%s tolerates %s: %v", component, taint, got)
				}
			}
		}
	}
}

func tolerates(all []corev1.Toleration, key string) bool {
	for _, t := range all {
		if (t.Key == key || t.Key == "") && t.Operator == corev1.TolerationOpExists && t.Effect == "" {
			return true
		}
	}
	return false
}

// TestControlPlaneNodesHaveTheLabel: its value differs between distributions.
func TestControlPlaneNodesHaveTheLabel(t *testing.T) {
	for value, node := range map[string]labels.Set{"empty": {v1alpha1.ControlPlaneLabel: ""}, "true": {v1alpha1.ControlPlaneLabel: "true"}} {
		if !(v1alpha1.Placement{}).Selector().Matches(node) {
			t.Errorf("a node whose label is %s is not selected by default", value)
		}
	}
	if (v1alpha1.Placement{}).Selector().Matches(labels.Set{"other": ""}) {
		t.Error("a worker is selected by default")
	}
	mine := v1alpha1.Placement{NodeSelector: map[string]string{"mine": ""}}
	if s := mine.Selector(); s.Matches(labels.Set{v1alpha1.ControlPlaneLabel: ""}) || !s.Matches(labels.Set{"mine": ""}) {
		t.Errorf("the selector of users is %s", s)
	}
	for _, name := range []string{"controller", "northd"} {
		for _, o := range operands[name](defaults()) {
			template := workload.Template(o)
			if template == nil {
				continue
			}
			terms := template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Operator != corev1.NodeSelectorOpExists {
				t.Errorf("%s has the node affinity %+v", o.GetName(), terms)
			}
			if template.Spec.Affinity.PodAntiAffinity == nil {
				t.Errorf("%s has lost its anti-affinity", o.GetName())
			}
		}
	}
}
