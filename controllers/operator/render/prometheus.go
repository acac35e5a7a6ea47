// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	_ "embed"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Kinds of the Prometheus operator. Their definitions are optional in a cluster.
var (
	ServiceMonitorKind = schema.GroupVersionKind{Group: PrometheusGroup, Version: "v1", Kind: "ServiceMonitor"}
	PrometheusRuleKind = schema.GroupVersionKind{Group: PrometheusGroup, Version: "v1", Kind: "PrometheusRule"}
)

// PrometheusGroup is the group of these kinds.
const PrometheusGroup = "monitoring.coreos.com"

// RulesName is the name of the PrometheusRule.
const RulesName = "kiln-alerts"

// Alerts are the groups of alerts in the form of a Prometheus rule file. They can be used without the Prometheus operator.
//
//go:embed alerts.yaml
var Alerts []byte

// OperatorName is the name of the operator's own Deployment, which is no operand.
const OperatorName = "kiln-operator"

const operatorHealthPort = 10670

// source is a component whose pods serve metrics.
type source struct {
	// component is the name of its workload, and app the label app of its pods.
	component, app string
	// port of plain metrics.
	port int32
	// plain is true if it serves no metrics over TLS.
	plain bool
}

// sources returns the components with metrics.
func (c Config) sources() []source {
	all := []source{
		{component: OperatorName, app: OperatorName, port: operatorHealthPort}, {component: ControllerName, app: ControllerName, port: controllerHealthPort},
		{component: AgentName, app: AgentName, port: agentHealthPort}, {component: OpenVSwitch, app: openVSwitchApp, port: openVSwitchHealthPort},
	}
	if HasMonitor(&c.Spec) {
		all = append(all, source{component: MonitorName, app: MonitorName, port: monitorHealthPort})
	}
	if hasPinger(&c.Spec) {
		all = append(all, source{component: PingerName, app: PingerName, port: pingerPort, plain: true})
	}
	if c.Spec.Speaker != nil {
		all = append(all, source{component: SpeakerName, app: SpeakerName, port: speakerHealthPort})
	}
	return all
}

// authorizedOffset is the distance from the port of plain metrics to the port of metrics over TLS.
const authorizedOffset = 200

// MetricsServices returns a headless Service for each component with metrics. They have Kube-OVN's names and the port name `metrics`, so that
// ServiceMonitors for Kube-OVN select them, and the label job has the same value. A Service has one family: with two, each pod would be
// scraped twice.
func MetricsServices(c Config) []Object {
	var objects []Object
	for _, s := range c.sources() {
		number := s.port
		if c.authorized() && !s.plain {
			number += authorizedOffset
		}
		objects = append(objects, &corev1.Service{
			ObjectMeta: c.meta(s.component, s.app, s.component),
			Spec: corev1.ServiceSpec{
				ClusterIP:      corev1.ClusterIPNone,
				Selector:       map[string]string{AppLabel: s.app, v1alpha1.ComponentLabel: s.component},
				IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
				Ports:          []corev1.ServicePort{servicePort("metrics", number)},
			},
		})
	}
	return objects
}

func (c Config) authorized() bool { return c.Spec.Monitoring.Access == v1alpha1.MetricsAuthorized }

// scrapeInterval is Kube-OVN's.
const scrapeInterval = "15s"

// ServiceMonitors returns a ServiceMonitor for each component, or none if the spec disables them.
func ServiceMonitors(c Config) []Object {
	if c.Spec.Monitoring.ServiceMonitors == v1alpha1.MonitoringDisabled {
		return nil
	}
	var objects []Object
	for _, s := range c.sources() {
		endpoint := map[string]any{"port": "metrics", "interval": scrapeInterval}
		if c.authorized() && !s.plain { // the certificates are self-signed
			endpoint["scheme"] = "https"
			endpoint["tlsConfig"] = map[string]any{"insecureSkipVerify": true}
			endpoint["bearerTokenFile"] = "/var/run/secrets/kubernetes.io/serviceaccount/token"
		}
		o := c.prometheusObject(ServiceMonitorKind, s.component, s.app)
		o.Object["spec"] = map[string]any{
			"selector":          map[string]any{"matchLabels": map[string]any{AppLabel: s.app, v1alpha1.ComponentLabel: s.component}},
			"namespaceSelector": map[string]any{"matchNames": []any{c.Namespace}},
			"endpoints":         []any{endpoint},
		}
		objects = append(objects, o)
	}
	return objects
}

// PrometheusRules returns the PrometheusRule with the alerts, or none if the spec disables it.
func PrometheusRules(c Config) []Object {
	if c.Spec.Monitoring.Rules == v1alpha1.MonitoringDisabled {
		return nil
	}
	o := c.prometheusObject(PrometheusRuleKind, RulesName, OperatorName)
	var spec map[string]any
	if err := yaml.Unmarshal(Alerts, &spec); err != nil {
		panic(err) // impossible: the file is part of the program, and tests read it
	}
	o.Object["spec"] = spec
	return []Object{o}
}

// prometheusObject returns an object with the labels of the spec, by which a Prometheus selects it.
func (c Config) prometheusObject(kind schema.GroupVersionKind, name, app string) *unstructured.Unstructured {
	m := c.meta(name, app, name)
	for key, value := range c.Spec.Monitoring.Labels {
		if _, own := m.Labels[key]; !own {
			m.Labels[key] = string(value)
		}
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetName(m.Name)
	o.SetNamespace(m.Namespace)
	o.SetLabels(m.Labels)
	return o
}
