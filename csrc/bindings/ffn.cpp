#include "bindings/bindings.h"
#include "cpu/ffn_activation.h"

namespace geowidth {
namespace {

using Place = std::pair<Address, int64_t>;  // address of the first element (0: absent), row stride in elements

Matrix matrix(const Place& place) { return {pointer<void>(place.first), place.second}; }

void forward(int scalar, int activation, int64_t rows, int64_t columns, Place gate, Place up, Place hidden,
             int threads) {
  ActivationTask task{};
  task.scalar = static_cast<Scalar>(scalar);
  task.activation = static_cast<Activation>(activation);
  task.rows = rows, task.columns = columns;
  task.gate = matrix(gate), task.up = matrix(up), task.hidden = matrix(hidden);
  ffn_activation(task, false, threads);
}

void backward(int scalar, int activation, int64_t rows, int64_t columns, Place gate, Place up, Place grad_hidden,
              Place grad_gate, Place grad_up, Place hidden, int threads) {
  ActivationTask task{};
  task.scalar = static_cast<Scalar>(scalar);
  task.activation = static_cast<Activation>(activation);
  task.rows = rows, task.columns = columns;
  task.gate = matrix(gate), task.up = matrix(up), task.hidden = matrix(hidden);
  task.grad_hidden = matrix(grad_hidden), task.grad_gate = matrix(grad_gate), task.grad_up = matrix(grad_up);
  ffn_activation(task, true, threads);
}

}  // namespace

void bind_ffn(py::module_& module) {
  module.def("ffn_activation_forward", &forward, py::call_guard<py::gil_scoped_release>());
  module.def("ffn_activation_backward", &backward, py::call_guard<py::gil_scoped_release>());
}

}  // namespace geowidth
