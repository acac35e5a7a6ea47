// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// formatText is the format for people.
const formatText = "text"

// output is the flag -o of a command whose answer is also for programs, with kubectl's formats.
type output struct {
	format string
	// own are formats of the command itself, the default first.
	own []string

	objects   genericclioptions.JSONYamlPrintFlags
	templates *genericclioptions.KubeTemplatePrintFlags
}

// add adds the flags to a command, which has these formats of its own.
func (o *output) add(cmd *cobra.Command, own ...string) {
	*o = output{own: own, objects: genericclioptions.JSONYamlPrintFlags{ShowManagedFields: true}, templates: genericclioptions.NewKubeTemplatePrintFlags()}
	cmd.Flags().StringVarP(&o.format, "output", "o", own[0], "one of "+strings.Join(o.formats(), ", "))
	o.templates.AddFlags(cmd)
}

func (o *output) formats() []string {
	return slices.Concat(o.own, o.objects.AllowedFormats(), o.templates.AllowedFormats())
}

// printer returns the printer of the format; nil for a format of the command itself.
func (o *output) printer() (printers.ResourcePrinter, error) {
	if slices.Contains(o.own, o.format) {
		return nil, nil //nolint:nilnil // documented
	}
	printer, err := o.objects.ToPrinter(o.format)
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		printer, err = o.templates.ToPrinter(o.format)
	}
	switch {
	case genericclioptions.IsNoCompatiblePrinterError(err):
		return nil, fmt.Errorf("--output %q: use one of %s", o.format, strings.Join(o.formats(), ", "))
	case err != nil:
		return nil, fmt.Errorf("--output: %w", err)
	}
	return printer, nil
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
	if _, err := io.WriteString(out, Printable(b.String())); err != nil { // templates print texts of other users as they are
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
