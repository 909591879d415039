#include "bindings/bindings.h"
#include "cpu/ffn_activation.h"

namespace geowidth {
namespace {

Matrix matrix(const Table& table) { return {table.data, table.stride}; }

ActivationTask task_of(int scalar, int activation, const Table& gate, const Table& up, const Table& hidden) {
  ActivationTask task{};
  task.scalar = static_cast<Scalar>(scalar);
  task.activation = static_cast<Activation>(activation);
  task.rows = up.rows, task.columns = up.columns;
  task.gate = matrix(gate), task.up = matrix(up), task.hidden = matrix(hidden);
  return task;
}

void forward(int scalar, int activation, const Table& gate, const Table& up, const Table& hidden, int threads) {
  ffn_activation(task_of(scalar, activation, gate, up, hidden), false, threads);
}

void backward(int scalar, int activation, const Table& gate, const Table& up, const Table& hidden,
              const Table& grad_hidden, const Table& grad_gate, const Table& grad_up, int threads) {
  ActivationTask task = task_of(scalar, activation, gate, up, hidden);
  task.grad_hidden = matrix(grad_hidden), task.grad_gate = matrix(grad_gate), task.grad_up = matrix(grad_up);
  ffn_activation(task, true, threads);
}

}  // namespace

void bind_ffn(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("ffn_activation_forward", &forward, py::arg("scalar"), py::arg("activation"), py::arg("gate"),
             py::arg("up"), py::arg("hidden"), py::arg("threads"), release);
  module.def("ffn_activation_backward", &backward, py::arg("scalar"), py::arg("activation"), py::arg("gate"),
             py::arg("up"), py::arg("hidden"), py::arg("grad_hidden"), py::arg("grad_gate"), py::arg("grad_up"),
             py::arg("threads"), release);
}

}  // namespace geowidth
