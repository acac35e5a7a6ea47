// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package panels

import (
	"encoding/json"
	"fmt"
)

// Places of panels on Grafana's grid of 24 columns.
const (
	columns     = 3
	panelWidth  = 24 / columns
	panelHeight = 8
)

// Grafana returns the dashboard in the JSON model of Grafana. It has a variable for the data source.
func (d Dashboard) Grafana() ([]byte, error) {
	source := map[string]any{"type": "prometheus", "uid": "${datasource}"}
	var panels []any
	for i, p := range d.Panels {
		var targets []any
		for j, q := range p.Queries {
			targets = append(targets, map[string]any{
				"refId": string(rune('A' + j)), "datasource": source, "expr": q.Expr, "legendFormat": q.Legend, "range": true,
			})
		}
		panels = append(panels, map[string]any{
			"id": i + 1, "type": "timeseries", "title": p.Title, "description": p.Empty, "datasource": source, "targets": targets,
			"gridPos":     map[string]any{"w": panelWidth, "h": panelHeight, "x": i % columns * panelWidth, "y": i / columns * panelHeight},
			"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.Unit, "min": 0}, "overrides": []any{}},
			"options":     map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true}},
		})
	}
	text, err := json.MarshalIndent(map[string]any{
		"uid": d.Name, "title": d.Title, "tags": []string{"kiln"}, "schemaVersion": 39, "editable": true, "refresh": "30s",
		"time": map[string]any{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": map[string]any{"list": []any{map[string]any{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the dashboard %s: %w", d.Name, err)
	}
	return append(text, '\n'), nil
}
