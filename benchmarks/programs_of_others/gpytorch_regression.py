"""GPyTorch fits the hyperparameters of an exact Gaussian process, then predicts."""
# After GPyTorch's examples/01_Exact_GPs/Simple_GP_Regression.ipynb, MIT: written anew, the
# library's API kept. Other than there: more points.

import math

import gpytorch
import torch
from _common import timed

POINTS, TEST_POINTS, ITERATIONS = 5000, 500, 60


class ExactGPModel(gpytorch.models.ExactGP):
    def __init__(self, train_x, train_y, likelihood):
        super().__init__(train_x, train_y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_x = torch.linspace(0, 1, POINTS, device=device)
    noise = torch.randn(POINTS, device=device) * math.sqrt(0.04)
    train_y = torch.sin(train_x * (2 * math.pi)) + noise
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    model = ExactGPModel(train_x, train_y, likelihood).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    model.train()
    likelihood.train()
    with timed():
        for number in range(ITERATIONS):
            optimizer.zero_grad()
            loss = -mll(model(train_x), train_y)
            loss.backward()
            lengthscale = model.covar_module.base_kernel.lengthscale.item()
            noise_now = model.likelihood.noise.item()
            print(f"{number}: {loss.item():.3f}, scale {lengthscale:.3f}, noise {noise_now:.3f}")
            optimizer.step()

        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            test_x = torch.linspace(0, 1, TEST_POINTS, device=device)
            lower, upper = likelihood(model(test_x)).confidence_region()
    print((upper - lower).mean().item())


if __name__ == "__main__":
    main()
