// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
)

// formatText is the format for people.
const formatText = "text"

// output is the flag -o of a command whose answer is also for programs, with kubectl's formats.
type output struct {
	format string
	// own are formats of the command itself, the default first.
	own []string
}

// kubectlFormats are kubectl's formats. The last ones have an argument.
const kubectlFormats = "json, yaml, kyaml, jsonpath=TEMPLATE, jsonpath-file=FILE, go-template=TEMPLATE, go-template-file=FILE"

// add adds the flag to a command, which has these formats of its own.
func (o *output) add(cmd *cobra.Command, own ...string) {
	o.own = own
	cmd.Flags().StringVarP(&o.format, "output", "o", own[0], "one of "+o.formats())
}

func (o *output) formats() string { return strings.Join(o.own, ", ") + ", " + kubectlFormats }

// printer returns the printer of the format; nil for a format of the command itself.
func (o *output) printer() (printers.ResourcePrinter, error) {
	if slices.Contains(o.own, o.format) {
		return nil, nil //nolint:nilnil // documented
	}
	name, template, _ := strings.Cut(o.format, "=")
	if of, isFile := strings.CutSuffix(name, "-file"); isFile && template != "" {
		content, err := os.ReadFile(template)
		if err != nil {
			return nil, fmt.Errorf("--output: read the template: %w", err)
		}
		name, template = of, string(content)
	}
	switch {
	case name == "json" && template == "":
		return &printers.JSONPrinter{}, nil
	case name == "yaml" && template == "":
		return &printers.YAMLPrinter{}, nil
	case name == "kyaml" && template == "":
		return &printers.KYAMLPrinter{}, nil
	case name == "jsonpath" && template != "":
		printer, err := printers.NewJSONPathPrinter(template)
		if err != nil {
			return nil, fmt.Errorf("--output: %w", err)
		}
		printer.AllowMissingKeys(true) // as kubectl
		return printer, nil
	case name == "go-template" && template != "":
		printer, err := printers.NewGoTemplatePrinter([]byte(template))
		if err != nil {
			return nil, fmt.Errorf("--output: %w", err)
		}
		printer.AllowMissingKeys(true)
		return printer, nil
	}
	return nil, fmt.Errorf("--output %q: use one of %s", o.format, o.formats())
}

// writeAs writes a value, an object in JSON, with its printer; with text if that is nil.
func writeAs(out io.Writer, printer printers.ResourcePrinter, value any, text func(io.Writer) error) error {
	if printer == nil {
		return text(out)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	var b strings.Builder
	if err := printer.PrintObj(&runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}, &b); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	if _, err := io.WriteString(out, printable(b.String())); err != nil { // templates print texts of other users as they are
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
